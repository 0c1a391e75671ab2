//! Timestamps, durations and time zones.

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::functions::Part;
use super::value::{Value, shorten};

/// A zone of the time zone database, or `+HH:MM`. The error names it and the remedy.
pub(super) fn zone(name: &str) -> Result<TimeZone, String> {
    if name.is_empty() {
        return Ok(TimeZone::UTC);
    }
    let unknown = || format!("unknown time zone {name:?}; write one such as \"Europe/Berlin\" or \"+02:00\"");
    match name.split_once(':') {
        None => TimeZone::get(name).map_err(|_| unknown()),
        Some((hours, minutes)) => offset(hours, minutes).map(TimeZone::fixed).ok_or_else(unknown),
    }
}

fn offset(hours: &str, minutes: &str) -> Option<Offset> {
    let sign = if hours.starts_with('-') { -1 } else { 1 };
    let number = |digits: &str| -> Option<i32> {
        let only_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
        only_digits.then(|| digits.parse().ok())?
    };
    let hours = number(hours.strip_prefix(['+', '-']).unwrap_or(hours)).filter(|hours| *hours < 24)?;
    let minutes = number(minutes).filter(|minutes| *minutes < 60)?;
    Offset::from_seconds(sign * (hours * 60 + minutes) * 60).ok()
}

/// A part of a timestamp in a zone, or a duration in whole units.
pub(super) fn part(part: Part, of: &Value<'_>, zone: &TimeZone) -> Option<i64> {
    match of {
        Value::Timestamp(time) => Some(part_of_time(part, *time, zone)),
        Value::Duration(duration) => part_of_duration(part, *duration),
        _ => None,
    }
}

/// Months, days of the year and days of the month count from 0, as the language has it; `getDate` from 1.
fn part_of_time(part: Part, time: Timestamp, zone: &TimeZone) -> i64 {
    let time = time.to_zoned_datetime(zone.clone());
    match part {
        Part::FullYear => time.year().into(),
        Part::Month => i64::from(time.month()) - 1,
        Part::DayOfYear => i64::from(time.day_of_year()) - 1,
        Part::DayOfMonth => i64::from(time.day()) - 1,
        Part::Date => time.day().into(),
        Part::DayOfWeek => time.weekday().to_sunday_zero_offset().into(),
        Part::Hours => time.hour().into(),
        Part::Minutes => time.minute().into(),
        Part::Seconds => time.second().into(),
        Part::Milliseconds => time.millisecond().into(),
    }
}

fn part_of_duration(part: Part, duration: SignedDuration) -> Option<i64> {
    match part {
        Part::Hours => Some(duration.as_hours()),
        Part::Minutes => Some(duration.as_mins()),
        Part::Seconds => Some(duration.as_secs()),
        Part::Milliseconds => duration.as_millis().try_into().ok(),
        _ => None,
    }
}

/// RFC 3339.
pub(super) fn parse_timestamp(text: &str) -> Result<Timestamp, String> {
    let error = |_| format!("{:?} is no timestamp such as \"2027-01-31T08:00:00Z\"", shorten(text));
    text.parse().map_err(error)
}

/// Hours and smaller: `1h30m`, `1.5h`, `-300ms`.
pub(super) fn parse_duration(text: &str) -> Result<SignedDuration, String> {
    let error = |_| format!("{:?} is no duration such as \"1h30m\" or \"300ms\"", shorten(text));
    text.parse().map_err(error)
}

/// Seconds, as the language has it: `90s`, `-0.25s`.
pub(super) fn show_duration(duration: SignedDuration) -> String {
    let sign = if duration.is_negative() { "-" } else { "" };
    let (seconds, nanos) = (duration.as_secs().unsigned_abs(), duration.subsec_nanos().unsigned_abs());
    let fraction = format!(".{nanos:09}");
    format!("{sign}{seconds}{}s", fraction.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_named_or_offsets() {
        for good in ["", "UTC", "Europe/Berlin", "America/New_York", "+02:00", "-03:30", "02:00", "-00:30"] {
            assert!(zone(good).is_ok(), "{good}");
        }
        for bad in ["Europe/Berlni", "+2", "+24:00", "+01:60", "+x:00", "++1:00", ":", "+01:-5"] {
            assert!(zone(bad).unwrap_err().contains("Europe/Berlin"), "{bad}");
        }
        assert_eq!(offset("-03", "30").unwrap().seconds(), -12_600);
        assert_eq!(offset("-00", "30").unwrap().seconds(), -1_800);
    }

    #[test]
    fn durations_are_shown_in_seconds() {
        for (text, shown) in [
            ("1h30m", "5400s"),
            ("1.5h", "5400s"),
            ("-250ms", "-0.25s"),
            ("1s1ns", "1.000000001s"),
            ("0s", "0s"),
        ] {
            assert_eq!(show_duration(parse_duration(text).unwrap()), shown, "{text}");
        }
        assert!(parse_duration("soon").is_err() && parse_duration("").is_err());
    }
}
