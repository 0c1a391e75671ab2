//! Sentences by how much they matter.

/// What a sentence is about, what matters most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// A model is told something new.
    Says,
    /// A hint promises less, or an annotation says something that is not known.
    LessSafe,
    /// What a call may carry, or must.
    Takes,
    /// Anything else that a model may go by.
    Other,
    /// A model is no longer told something.
    Falls,
    /// `_meta`.
    Meta,
    /// A hint promises more.
    Safer,
    /// What only people see.
    Display,
}

const RANKS: usize = Rank::Display as usize + 1;
/// Sentences that are given.
const MOST: usize = 50;

/// Those that were found.
#[derive(Debug, Default)]
pub(super) struct Sentences {
    by_rank: [Vec<String>; RANKS],
    count: usize,
}

impl Sentences {
    /// Takes a sentence. Of one rank no more are made than will be given.
    pub(super) fn say(&mut self, rank: Rank, sentence: impl FnOnce() -> String) {
        self.count += 1;
        if let Some(sentences) =
            self.by_rank.get_mut(rank as usize).filter(|sentences| sentences.len() < MOST)
        {
            sentences.push(sentence());
        }
    }

    /// How many there were.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// What matters most of them, and how many others there are.
    pub(super) fn together(self) -> Vec<String> {
        let mut all: Vec<String> = self.by_rank.into_iter().flatten().collect();
        if self.count > MOST {
            all.truncate(MOST - 1);
            all.push(format!("and {} more changes: see the patch", self.count - all.len()));
        }
        if all.is_empty() {
            // Members that are there twice: from the wire nothing else gets here.
            all.push("changed in a way that there are no words for: see the patch".to_owned());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_most_is_said_first_and_the_rest_counted() {
        let mut said = Sentences::default();
        for index in 0..100 {
            said.say(Rank::Display, || format!("display {index}"));
        }
        said.say(Rank::Says, || "says".to_owned());
        let all = said.together();
        assert_eq!(all.len(), 50);
        assert_eq!((all[0].as_str(), all[1].as_str()), ("says", "display 0"));
        assert_eq!(all[49], "and 52 more changes: see the patch");
    }
}
