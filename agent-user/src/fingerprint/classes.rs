//! In what two definitions differ.

use std::fmt;

use schemars::JsonSchema;
use serde::de::Deserializer;
use serde::ser::{SerializeSeq as _, Serializer};
use serde::{Deserialize, Serialize};

/// One way to differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// What a model goes by: description, schemas, and whatever is not known to be anything else.
    Definition,
    /// An annotation says that it may do more than it said before, or says something else that is not known.
    AnnotationsLessSafe,
    /// An annotation says that it may do less.
    AnnotationsSafer,
    /// Titles and icons.
    Display,
    /// `_meta`, but for `ui`.
    Meta,
    /// `_meta.ui`: the page that is shown for a tool.
    Ui,
    /// Only the order of a list.
    Order,
    /// It came to a list that was known whole.
    Added,
    /// It is gone from a list that was seen whole.
    Removed,
}

/// A set of them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Classes(u16);

impl Class {
    pub const ALL: [Class; 9] = [
        Class::Definition,
        Class::AnnotationsLessSafe,
        Class::AnnotationsSafer,
        Class::Display,
        Class::Meta,
        Class::Ui,
        Class::Order,
        Class::Added,
        Class::Removed,
    ];

    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            Class::Definition => "definition",
            Class::AnnotationsLessSafe => "annotations_less_safe",
            Class::AnnotationsSafer => "annotations_safer",
            Class::Display => "display",
            Class::Meta => "meta",
            Class::Ui => "ui",
            Class::Order => "order",
            Class::Added => "added",
            Class::Removed => "removed",
        }
    }

    fn bit(self) -> u16 {
        1 << (self as u16)
    }
}

impl Classes {
    pub const NONE: Classes = Classes(0);

    pub fn contains(self, class: Class) -> bool {
        self.0 & class.bit() != 0
    }

    pub fn insert(&mut self, class: Class) {
        self.0 |= class.bit();
    }

    pub fn remove(&mut self, class: Class) {
        self.0 &= !class.bit();
    }

    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// Those in both.
    pub fn and(self, other: Classes) -> Classes {
        Classes(self.0 & other.0)
    }

    /// Those in either.
    pub fn or(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }

    pub fn iter(self) -> impl Iterator<Item = Class> {
        Class::ALL.into_iter().filter(move |class| self.contains(*class))
    }
}

impl FromIterator<Class> for Classes {
    fn from_iter<T: IntoIterator<Item = Class>>(classes: T) -> Classes {
        let mut set = Classes::NONE;
        classes.into_iter().for_each(|class| set.insert(class));
        set
    }
}

impl fmt::Debug for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl fmt::Display for Classes {
    /// Labels with commas between them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, class) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            f.write_str(class.label())?;
        }
        Ok(())
    }
}

impl Serialize for Classes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for class in self.iter() {
            list.serialize_element(&class)?;
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for Classes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Classes, D::Error> {
        Ok(Vec::<Class>::deserialize(deserializer)?.into_iter().collect())
    }
}
