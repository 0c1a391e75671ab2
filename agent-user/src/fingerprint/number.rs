//! Numbers in canonical form: one text for one number, whatever its size, without arithmetic on floating point.
//!
//! The form is that of ECMAScript's `Number::toString`, which RFC 8785 asks for, but with all digits: up to 21 digits before
//! the point and 6 zeros behind it are written out (`100`, `0.5`, `-0.0000015`), all else as one digit, a point and the
//! others where there are any, and an exponent with its sign (`1.5e+300`). There is no negative zero.

use std::borrow::Cow;
use std::iter::repeat_n;

/// Appends the number that a valid JSON text says.
pub(super) fn push(text: &str, out: &mut String) {
    // As nearly all are.
    let plain = text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain && (text == "0" || !text.starts_with('0')) {
        return out.push_str(text);
    }
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |text| ("-", text));
    let (significand, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = significand.split_once('.').unwrap_or((significand, ""));
    let digits = format!("{whole}{fraction}");
    let leading = digits.len() - digits.trim_start_matches('0').len();
    let digits = digits.trim_matches('0');
    if digits.is_empty() {
        return out.push('0');
    }
    out.push_str(sign);
    // Digits before the point, were there no exponent.
    let point = signed(whole.len()) - signed(leading);
    let exact = exponent.parse::<i64>().ok().and_then(|exponent| exponent.checked_add(point));
    match exact.and_then(|point| i8::try_from(point).ok()).map(i64::from) {
        Some(point @ 1..=21) => {
            let point = usize::try_from(point).unwrap_or_default();
            let (whole, fraction) = digits.split_at_checked(point).unwrap_or((digits, ""));
            out.push_str(whole);
            out.extend(repeat_n('0', point - whole.len()));
            if !fraction.is_empty() {
                out.push('.');
                out.push_str(fraction);
            }
        }
        Some(point @ -5..=0) => {
            out.push_str("0.");
            out.extend(repeat_n('0', usize::try_from(-point).unwrap_or_default()));
            out.push_str(digits);
        }
        _ => {
            let (first, others) = digits.split_at_checked(1).unwrap_or((digits, ""));
            out.push_str(first);
            if !others.is_empty() {
                out.push('.');
                out.push_str(others);
            }
            let exponent = add(exponent, point - 1);
            out.push_str(if exponent.starts_with('-') { "e" } else { "e+" });
            out.push_str(&exponent);
        }
    }
}

fn signed(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// The sum of an integer of any length and a small one.
fn add(text: &str, small: i64) -> Cow<'_, str> {
    if let Some(sum) = text.parse::<i64>().ok().and_then(|number| number.checked_add(small)) {
        return sum.to_string().into();
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.trim_start_matches('+')),
    };
    // So large that the sum has its sign: add to or take from what it is without.
    let mut carry = if negative { -i128::from(small) } else { i128::from(small) };
    let mut sum: Vec<u8> = Vec::with_capacity(digits.len() + 1);
    for digit in digits.bytes().rev() {
        let value = i128::from(digit.wrapping_sub(b'0')) + carry;
        sum.push(b'0' + u8::try_from(value.rem_euclid(10)).unwrap_or_default());
        carry = value.div_euclid(10);
    }
    if carry > 0 {
        sum.extend(carry.to_string().bytes().rev());
    }
    let sum: String = sum.into_iter().rev().map(char::from).collect();
    let sum = sum.trim_start_matches('0');
    format!("{}{sum}", if negative { "-" } else { "" }).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        let mut out = String::new();
        push(text, &mut out);
        out
    }

    #[track_caller]
    fn check(expect: &str, spellings: &[&str]) {
        for text in spellings {
            assert_eq!(canonical(text), expect, "{text}");
        }
        assert_eq!(canonical(expect), expect);
    }

    #[test]
    fn one_number_has_one_form() {
        check("0", &["0", "-0", "0.0", "-0.000e7", "0e99999999999999999999999"]);
        check("100", &["100", "1e2", "100.0", "1.0E+2", "1000e-1", "0.01e4", "10000000000e-8"]);
        check("-0.5", &["-0.5", "-5e-1", "-0.50", "-50E-2"]);
        check("0.000001", &["1e-6", "0.0000010"]);
        check("1e-7", &["0.0000001", "10e-8", "1.0E-07"]);
        check("123.456", &["123.456", "123456e-3", "0.00123456e5"]);
        check("100000000000000000000", &["1e20"]);
        check("123456789012345678901", &["123456789012345678901", "12345678901234567890.1e1"]);
        check("1e+21", &["1000000000000000000000", "1e21", "0.1e22"]);
        check("1.5e+300", &["1.5e300", "15e299", "150.0e+0298"]);
        check("0.1234567890123456789012345678901", &["0.1234567890123456789012345678901"]);
        check("9007199254740993", &["9007199254740993", "9007199254740993.0"]);
    }

    #[test]
    fn different_numbers_have_different_forms() {
        let apart = [
            "9007199254740993",
            "9007199254740992",
            "0.1",
            "0.10000000000000001",
            "1e999999999",
            "1e999999998",
            "-1e999999999",
            "1e-999999999",
        ];
        for (index, a) in apart.iter().enumerate() {
            assert!(apart[..index].iter().all(|b| canonical(a) != canonical(b)), "{a}");
        }
    }

    #[test]
    fn exponents_may_have_any_length() {
        let nines = "9".repeat(40);
        let next = format!("1{}", "0".repeat(40));
        check(
            &format!("1e+{next}"),
            &[&format!("1e{next}"), &format!("10e{nines}"), &format!("10e+00{nines}")],
        );
        check(&format!("1e+{nines}"), &[&format!("0.1e{next}"), &format!("0.01E+{}1", &next[..40])]);
        check(&format!("1e-{nines}"), &[&format!("10e-{next}"), &format!("1e-000{nines}")]);
        check("1e+9223372036854775808", &["1e9223372036854775808", "10e9223372036854775807"]);
        check("1e+9223372036854775807", &["0.1e9223372036854775808", "1e9223372036854775807"]);
        check("1.2e-9223372036854775809", &["0.12e-9223372036854775808", "12e-9223372036854775810"]);
        assert!(canonical("1e999999999").len() < 20);
    }

    #[test]
    fn what_is_no_number_does_no_harm() {
        for text in ["", "-", ".", "e", "-e5", "1e", "1e+", "é", "1e1.5", "+", "00", "007"] {
            canonical(text);
        }
    }
}
