//! JSON Pointers (RFC 6901) with `*` for every member or element.

/// Where a field is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pointer(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Every,
    One(String),
}

/// Where a value is in what it is in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    Member(&'a str),
    Element(usize),
}

/// Pointers that go through a value, by their index, or end there.
#[derive(Clone, Debug, Default)]
pub(super) struct Open {
    pub(super) ends: bool,
    through: Vec<usize>,
    depth: usize,
}

impl Pointer {
    /// Errors name the remedy.
    pub(super) fn parse(text: &str) -> Result<Pointer, String> {
        if text.is_empty() {
            return Err("this is everything: give a member, such as \"/password\"".to_owned());
        }
        let Some(steps) = text.strip_prefix('/') else {
            return Err(format!("a pointer begins with a slash: write {:?}", format!("/{text}")));
        };
        let step = |step: &str| match step {
            "*" => Ok(Step::Every),
            "**" => Err("** is not known: write one * for each level".to_owned()),
            _ => Ok(Step::One(unescape(step).ok_or_else(|| {
                let remedy = text.replace('~', "~0").replace("~00", "~0").replace("~01", "~1");
                format!("~ stands only before 0 (for ~) or 1 (for /): write {remedy:?}")
            })?)),
        };
        steps.split('/').map(step).collect::<Result<_, _>>().map(Pointer)
    }
}

impl Open {
    /// Of the whole text.
    pub(super) fn all(pointers: &[Pointer]) -> Open {
        Open { ends: false, through: (0..pointers.len()).collect(), depth: 0 }
    }

    /// Of a value inside the one that this is of.
    pub(super) fn at(&self, pointers: &[Pointer], place: Place<'_>) -> Open {
        let mut inside = Open { depth: self.depth + 1, ..Open::default() };
        for index in &self.through {
            let Some(Pointer(steps)) = pointers.get(*index) else { continue };
            match steps.get(self.depth) {
                Some(step) if step.leads_to(place) => {}
                _ => continue,
            }
            if steps.len() == inside.depth {
                inside.ends = true;
            } else {
                inside.through.push(*index);
            }
        }
        inside
    }

    /// No pointer is open: nothing inside can be a field.
    pub(super) fn is_none(&self) -> bool {
        self.through.is_empty()
    }
}

impl Step {
    fn leads_to(&self, place: Place<'_>) -> bool {
        match (self, place) {
            (Step::Every, _) => true,
            (Step::One(name), Place::Member(member)) => name == member,
            // No leading zeros, no sign (RFC 6901, section 4).
            (Step::One(name), Place::Element(index)) => {
                name.parse() == Ok(index) && *name == index.to_string()
            }
        }
    }
}

fn unescape(step: &str) -> Option<String> {
    let mut text = String::with_capacity(step.len());
    let mut chars = step.chars();
    while let Some(char) = chars.next() {
        text.push(match char {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            _ => char,
        });
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_read() {
        let check = |text: &str, expect: &[&str]| {
            let steps = expect.iter().map(|step| match *step {
                "*" => Step::Every,
                step => Step::One(step.to_owned()),
            });
            assert_eq!(Pointer::parse(text), Ok(Pointer(steps.collect())), "{text}");
        };
        check("/", &[""]);
        check("/a/0/*", &["a", "0", "*"]);
        check("/~0~1~01/b c/\u{e9}", &["~/~1", "b c", "\u{e9}"]);
        for bad in ["", "a", "#/a", "/~", "/a~", "/~2", "/a/**"] {
            assert!(Pointer::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn elements_have_one_spelling() {
        let check = |step: &str, index, expect| {
            assert_eq!(Step::One(step.to_owned()).leads_to(Place::Element(index)), expect, "{step}");
        };
        check("0", 0, true);
        check("12", 12, true);
        for other in ["00", "+0", "-", "", "1", "99999999999999999999"] {
            check(other, 0, false);
        }
    }
}
