//! Payment card numbers: 13 to 19 digits with a known issuer and the right check digit (ISO/IEC 7812-1, annex B).
//!
//! Every tenth number has the right check digit by chance, so what else looks like one is passed over: parts of longer
//! numbers, decimal fractions, UUIDs and digests. An order number of an issuer's length and beginning cannot be told
//! from a card.

use std::ops::Range;

/// Gives the place of each card number in `text`.
pub(super) fn find(text: &str, mut found: impl FnMut(Range<usize>)) {
    let bytes = text.as_bytes();
    let mut groups = Vec::new();
    let mut at = 0;
    while let Some(digit) = bytes.get(at..).and_then(|rest| rest.iter().position(u8::is_ascii_digit)) {
        at = read_groups(bytes, at + digit, &mut groups);
        let mut first = 0;
        while first < groups.len() {
            first = match card_at(bytes, groups.get(first..).unwrap_or_default()) {
                Some((range, count)) => {
                    found(range);
                    first + count
                }
                None => first + 1,
            };
        }
    }
}

/// Whether a JSON number is one of a card, however it is spelled: `4111111111111111.0` is what a table with gaps makes
/// of it.
pub(super) fn is_card_number(number: &str) -> bool {
    let number = number.strip_prefix('-').unwrap_or(number);
    if number.len() > 64 {
        return false;
    }
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let Ok(exponent) = exponent.parse::<isize>() else { return false };
    let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|digit| digit - b'0').collect();
    let Some(length) = whole.len().checked_add_signed(exponent).filter(|length| *length <= MOST) else {
        return false;
    };
    if digits.iter().skip(length).any(|digit| *digit != 0) {
        return false;
    }
    digits.resize(length, 0);
    is_card(&digits)
}

/// Reads digits with single spaces or dashes between, from `at` on. Gives where they end.
fn read_groups(bytes: &[u8], mut at: usize, groups: &mut Vec<Range<usize>>) -> usize {
    groups.clear();
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let length = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        groups.push(at..at + length);
        at += length;
        match (bytes.get(at), bytes.get(at + 1)) {
            (Some(b' ' | b'-'), Some(b'0'..=b'9')) => at += 1,
            _ => return at,
        }
    }
}

/// The longest card number that begins with the first of the groups, and how many groups it has.
fn card_at(bytes: &[u8], groups: &[Range<usize>]) -> Option<(Range<usize>, usize)> {
    let start = groups.first()?.start;
    if is_fraction(bytes, start) {
        return None;
    }
    let mut digits = Vec::with_capacity(MOST);
    let mut card = None;
    for (index, group) in groups.iter().enumerate() {
        // As cards are printed: 4-4-4-4, 4-6-5, 4-4-4-4-3, 6-13. Lists of small numbers are not.
        let is_last = group.len() < 3;
        if digits.len() + group.len() > MOST || (index == 0 && group.len() < 4) {
            break;
        }
        digits.extend(bytes.get(group.clone())?.iter().map(|digit| digit - b'0'));
        let place = start..group.end;
        if is_card(&digits) && !has_fraction(bytes, group.end) && !is_part_of_id(bytes, &place) {
            card = Some((place, index + 1));
        }
        if is_last {
            break;
        }
    }
    card
}

/// The digits are behind a decimal point.
fn is_fraction(bytes: &[u8], start: usize) -> bool {
    let before = |back: usize| start.checked_sub(back).and_then(|at| bytes.get(at));
    before(1) == Some(&b'.') && before(2).is_some_and(u8::is_ascii_digit)
}

/// The digits are before a decimal point with anything but zeros behind it.
fn has_fraction(bytes: &[u8], end: usize) -> bool {
    let Some((b'.', rest)) = bytes.get(end..).and_then(<[u8]>::split_first) else { return false };
    rest.iter().find(|byte| **byte != b'0').is_some_and(u8::is_ascii_digit)
}

/// The digits are in a UUID, or in a digest or other long hexadecimal number that has letters, too.
fn is_part_of_id(bytes: &[u8], card: &Range<usize>) -> bool {
    let around = |is_part: fn(&u8) -> bool| {
        let before = bytes.get(..card.start).unwrap_or_default();
        let after = bytes.get(card.end..).unwrap_or_default();
        let before = before.iter().rev().take(MOST_OF_ID).take_while(|byte| is_part(byte)).count();
        let after = after.iter().take(MOST_OF_ID).take_while(|byte| is_part(byte)).count();
        bytes.get(card.start - before..card.end + after).unwrap_or_default()
    };
    let hex = around(u8::is_ascii_hexdigit);
    let dashed = around(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    let dashes = dashed.iter().enumerate().filter(|(_, byte)| **byte == b'-').map(|(at, _)| at);
    (hex.len() >= LEAST_OF_DIGEST && hex.iter().any(u8::is_ascii_alphabetic))
        || (dashed.len() == 36 && dashes.eq([8, 13, 18, 23]))
}

/// Whether these digits have the beginning and length of an issuer, and the right check digit.
fn is_card(digits: &[u8]) -> bool {
    (LEAST..=MOST).contains(&digits.len()) && is_issued(digits) && is_checked(digits)
}

fn is_issued(digits: &[u8]) -> bool {
    let head = digits.iter().take(6).fold(0_u32, |head, digit| head * 10 + u32::from(*digit));
    ISSUERS
        .iter()
        .any(|(heads, lengths)| (heads.0..=heads.1).contains(&head) && lengths.contains(&digits.len()))
}

/// The Luhn formula: the sum of all digits, every second from the right doubled, ends with zero.
fn is_checked(digits: &[u8]) -> bool {
    let weigh = |(at, digit): (usize, &u8)| match u32::from(*digit) << (at % 2) {
        weight @ 10.. => weight - 9,
        weight => weight,
    };
    digits.iter().rev().enumerate().map(weigh).sum::<u32>() % 10 == 0
}

const LEAST: usize = 13;
const MOST: usize = 19;
const MOST_OF_ID: usize = 64;
/// Of a MongoDB ObjectId; a track of a magnetic stripe has `B` before a number of 19 digits at most.
const LEAST_OF_DIGEST: usize = 24;

/// First and last beginning, filled up to six digits, and the lengths: what the networks publish, as collected in the
/// table of issuing networks of Wikipedia's "Payment card number". Left out are 12 digits, Maestro's ranges without a
/// network of their own, and UATP, which has all of 1.
const ISSUERS: &[((u32, u32), &[usize])] = &[
    // Mir
    ((220_000, 220_499), &[16, 17, 18, 19]),
    // Mastercard
    ((222_100, 272_099), &[16]),
    ((510_000, 559_999), &[16]),
    // Diners Club
    ((300_000, 305_999), &[14, 15, 16, 17, 18, 19]),
    ((309_500, 309_599), &[14, 15, 16, 17, 18, 19]),
    ((360_000, 369_999), &[14, 15, 16, 17, 18, 19]),
    ((380_000, 399_999), &[14, 15, 16, 17, 18, 19]),
    // American Express
    ((340_000, 349_999), &[15]),
    ((370_000, 379_999), &[15]),
    // JCB; RuPay has some of it
    ((352_800, 358_999), &[16, 17, 18, 19]),
    ((353_000, 353_999), &[16]),
    // Visa
    ((400_000, 499_999), &[13, 16, 19]),
    // Maestro, Dankort, Verve, Elo, RuPay
    ((501_800, 501_899), &[13, 14, 15, 16, 17, 18, 19]),
    ((501_900, 501_999), &[16]),
    ((502_000, 502_099), &[13, 14, 15, 16, 17, 18, 19]),
    ((503_800, 503_899), &[13, 14, 15, 16, 17, 18, 19]),
    ((506_099, 506_198), &[16, 18, 19]),
    ((506_699, 506_778), &[16]),
    ((507_865, 507_964), &[16, 18, 19]),
    ((508_000, 509_999), &[16]),
    ((589_300, 589_399), &[13, 14, 15, 16, 17, 18, 19]),
    // RuPay, Discover, Troy
    ((600_000, 609_999), &[16]),
    ((601_100, 601_199), &[17, 18, 19]),
    ((644_000, 659_999), &[16, 17, 18, 19]),
    // UnionPay, and Discover with it
    ((620_000, 629_999), &[16, 17, 18, 19]),
    ((810_000, 829_999), &[16, 17, 18, 19]),
    // Maestro, InterPayment, InstaPayment
    ((630_400, 630_499), &[13, 14, 15, 16, 17, 18, 19]),
    ((636_000, 636_999), &[16, 17, 18, 19]),
    ((637_000, 639_999), &[16]),
    ((675_900, 675_999), &[13, 14, 15, 16, 17, 18, 19]),
    ((676_100, 676_399), &[13, 14, 15, 16, 17, 18, 19]),
    // UzCard, Troy, Humo
    ((860_000, 860_099), &[16]),
    ((979_200, 979_299), &[16]),
    ((986_000, 986_099), &[16]),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn cards(text: &str) -> Vec<&str> {
        let mut cards = Vec::new();
        find(text, |range| cards.push(&text[range]));
        cards
    }

    #[test]
    fn test_numbers_of_the_networks_are_found() {
        for card in [
            "4111111111111111",
            "4012888888881881",
            "4222222222222",
            "5555555555554444",
            "2223003122003222",
            "378282246310005",
            "6011111111111117",
            "6011000990139424",
            "3056930009020004",
            "36227206271667",
            "30569309025904",
            "3566002020360505",
            "6200000000000005",
            "6759649826438453",
            "2200000000000004",
            "4111 1111 1111 1111",
            "4111-1111-1111-1111",
            "3782 822463 10005",
            "6304 0000 0000 0000",
        ] {
            assert_eq!(cards(card), [card]);
            assert_eq!(cards(&format!("<{card}> and ({card}),{card}.")), [card; 3]);
        }
    }

    #[test]
    fn cards_are_found_among_other_numbers() {
        assert_eq!(cards("2026-01-02 4111 1111 1111 1111 12-29"), ["4111 1111 1111 1111"]);
        assert_eq!(cards("4111 1111 1111 1111 123"), ["4111 1111 1111 1111"]);
        assert_eq!(cards("4111111111111111,5555555555554444"), ["4111111111111111", "5555555555554444"]);
        assert_eq!(cards("4111111111111111 5555555555554444"), ["4111111111111111", "5555555555554444"]);
        assert_eq!(cards("%B4111111111111111^DOE"), ["4111111111111111"]);
        assert_eq!(cards("4111111111111111=2512"), ["4111111111111111"]);
        assert_eq!(cards("4111111111111111.0"), ["4111111111111111"]);
        assert_eq!(cards("card4111111111111111."), ["4111111111111111"]);
    }

    #[test]
    fn other_numbers_are_left_alone() {
        for other in [
            "4111111111111112",
            "41111111111111110",
            "04111111111111111",
            "1411111111111111 1",
            "4111  1111  1111  1111",
            "4111.1111.1111.1111",
            "1700000000000",
            "1700000000000000000",
            "2026-01-02T10:11:12.4111111111111111Z",
            "0.4111111111111111",
            "4111111111111111.25",
            "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
            "550e8400-e29b-41d4-a716-446655440000",
            "12345678-1234-4242-4242-424242424242",
            "deadbeef4111111111111111cafe0000",
            "0000000000000000",
            "9999999999999995",
            "+49 30 123456 7890",
            "411111111111111\u{0661}",
        ] {
            assert_eq!(cards(other), [] as [&str; 0], "{other}");
        }
    }

    #[test]
    fn numbers_are_read_by_value() {
        for number in
            ["4111111111111111", "-4111111111111111", "4111111111111111.00", "4.111111111111111E+15"]
        {
            assert!(is_card_number(number), "{number}");
        }
        for number in
            ["4111111111111111e1", "4111111111111111.5", "411111111111111", "0", "1e99999999999999999999"]
        {
            assert!(!is_card_number(number), "{number}");
        }
    }
}
