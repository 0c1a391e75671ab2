//! Which rules can concern a text, so that the cost of a look-up does not grow with the rules that it does not find: literal
//! names are a hash table, and so is the fixed text with which a glob begins or ends. A glob that has fixed text only
//! inside is found by that, and what has none, by trying.
//!
//! What is found is a superset: whoever asks looks at the rule itself, too.

use std::collections::HashMap;

use aho_corasick::AhoCorasick;
use foldhash::fast::RandomState;
use globset::{Candidate, Glob, GlobSet, GlobSetBuilder};

use super::super::scope::Scope;
use super::file::Globs;
use super::globs::{compile_glob, is_literal};

/// One field of many rules.
#[derive(Debug, Default)]
pub(super) struct Index {
    literals: Table,
    beginnings: Ends,
    ends: Ends,
    inner: Option<Inner>,
    others: GlobSet,
    /// The rule each of these belongs to.
    rules: Vec<usize>,
}

/// Rules by what their globs begin or end with.
#[derive(Debug, Default)]
struct Ends {
    /// The lengths there are, shortest first.
    lengths: Vec<usize>,
    rules: Table,
}

/// Rules by a text. What agents say is looked up and never put in, so a fast hash will do.
type Table = HashMap<Box<[u8]>, Found, RandomState>;

/// Rules by text in the middle of their globs.
#[derive(Debug)]
struct Inner {
    texts: AhoCorasick,
    rules: Vec<Found>,
}

/// Rules of one text: a list, or a set once that is the smaller of the two.
#[derive(Debug)]
enum Found {
    List(Vec<usize>),
    Set(Scope),
}

/// Rules that can concern something, to be looked at.
#[derive(Debug, Default)]
pub(super) struct Candidates<'a> {
    sets: Vec<&'a Scope>,
    rules: Vec<usize>,
}

impl<'a> Candidates<'a> {
    pub(super) fn with(set: &'a Scope) -> Candidates<'a> {
        Candidates { sets: vec![set], rules: Vec::new() }
    }

    fn add(&mut self, found: &'a Found) {
        match found {
            Found::List(rules) => self.rules.extend(rules),
            Found::Set(rules) => self.sets.push(rules),
        }
    }

    /// Those in a scope, in policy order.
    pub(super) fn within(mut self, scope: &Scope) -> Vec<usize> {
        self.rules.retain(|rule| scope.contains(*rule));
        self.sets.iter().for_each(|set| scope.in_both(set, &mut self.rules));
        self.rules.sort_unstable();
        self.rules.dedup();
        self.rules
    }

    /// All of them, some perhaps twice.
    pub(super) fn rules(mut self) -> Vec<usize> {
        self.sets.iter().for_each(|set| set.in_both(set, &mut self.rules));
        self.rules
    }
}

impl Ends {
    fn find<'a>(&'a self, text: &[u8], end: fn(&[u8], usize) -> &[u8], found: &mut Candidates<'a>) {
        for length in self.lengths.iter().take_while(|length| **length <= text.len()) {
            self.rules.get(end(text, *length)).into_iter().for_each(|rules| found.add(rules));
        }
    }
}

impl Index {
    /// No rule is in it.
    pub(super) fn is_empty(&self) -> bool {
        let Index { literals, beginnings, ends, inner, others: _, rules } = self;
        let ends = [beginnings, ends];
        literals.is_empty()
            && ends.iter().all(|ends| ends.rules.is_empty())
            && inner.is_none()
            && rules.is_empty()
    }

    /// Adds the rules whose globs can match.
    pub(super) fn find<'a>(&'a self, text: &str, found: &mut Candidates<'a>) {
        let bytes = text.as_bytes();
        self.literals.get(bytes).into_iter().for_each(|rules| found.add(rules));
        self.beginnings.find(bytes, first, found);
        self.ends.find(bytes, last, found);
        if let Some(inner) = &self.inner {
            let texts = inner.texts.find_overlapping_iter(bytes);
            texts.for_each(|text| found.add(&inner.rules[text.pattern().as_usize()]));
        }
        if !self.rules.is_empty() {
            let globs = self.others.matches_candidate(&Candidate::new(text));
            found.rules.extend(globs.into_iter().map(|glob| self.rules[glob]));
        }
    }
}

fn first(text: &[u8], length: usize) -> &[u8] {
    &text[..length]
}

fn last(text: &[u8], length: usize) -> &[u8] {
    &text[text.len() - length..]
}

/// Text without which a glob does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fixed<'a> {
    Whole(&'a str),
    Beginning(&'a str),
    End(&'a str),
    Inner(&'a str),
}

impl<'a> Fixed<'a> {
    fn text(self) -> &'a str {
        let (Fixed::Whole(text) | Fixed::Beginning(text) | Fixed::End(text) | Fixed::Inner(text)) = self;
        text
    }

    /// All of a glob.
    fn of(glob: &'a str) -> Vec<Fixed<'a>> {
        if is_literal(glob) {
            return vec![Fixed::Whole(glob)];
        }
        let is_special = |letter: char| "*?[]{}\\!,".contains(letter);
        let mut parts: Vec<&str> = glob.split(is_special).collect();
        let (mut beginning, mut end) = (parts.remove(0), parts.pop().unwrap_or_default());
        // `**/` and `/**` match nothing at all as well, without the slash.
        if glob.contains("**") {
            beginning = beginning.trim_end_matches('/');
            end = end.trim_start_matches('/');
            parts.iter_mut().for_each(|part| *part = part.trim_matches('/'));
        }
        let mut all = vec![Fixed::Beginning(beginning), Fixed::End(end)];
        // Between brackets and braces there are alternatives.
        if !glob.contains(['[', ']', '{', '}', '\\']) {
            all.extend(parts.into_iter().max_by_key(|part| part.len()).map(Fixed::Inner));
        }
        all.retain(|fixed| !fixed.text().is_empty());
        all
    }
}

#[derive(Default)]
pub(super) struct IndexBuilder {
    globs: Vec<(String, usize)>,
}

impl IndexBuilder {
    pub(super) fn add(&mut self, rule: usize, globs: &Globs) {
        let globs = globs.patterns().iter().flat_map(|glob| alternatives(glob));
        self.globs.extend(globs.map(|glob| (glob, rule)));
    }

    /// For a policy of `count` rules.
    pub(super) fn build(self, count: usize) -> Result<Index, String> {
        // What many globs have tells little about one of them.
        let mut uses: HashMap<Fixed<'_>, usize> = HashMap::new();
        for fixed in self.globs.iter().flat_map(|(glob, _)| Fixed::of(glob)) {
            *uses.entry(fixed).or_default() += 1;
        }
        let mut rules: HashMap<Fixed<'_>, Vec<usize>> = HashMap::new();
        let (mut set, mut others) = (GlobSetBuilder::new(), Vec::new());
        for (glob, rule) in &self.globs {
            match Fixed::of(glob).into_iter().min_by_key(|fixed| uses[fixed]) {
                Some(fixed) => rules.entry(fixed).or_default().push(*rule),
                None => {
                    set.add(Glob::new(glob).map_err(|error| error.to_string())?);
                    others.push(*rule);
                }
            }
        }
        let globs = set.build().map_err(|error| format!("rules too large to index: {error}"))?;
        let mut index = Index { others: globs, rules: others, ..Index::default() };
        let mut inner = (Vec::new(), Vec::new());
        for (fixed, rules) in rules {
            let (text, rules) = (fixed.text().as_bytes(), Found::of(rules, count));
            let known = match fixed {
                Fixed::Whole(_) => &mut index.literals,
                Fixed::Beginning(_) => &mut index.beginnings.rules,
                Fixed::End(_) => &mut index.ends.rules,
                Fixed::Inner(_) => {
                    inner.0.push(text);
                    inner.1.push(rules);
                    continue;
                }
            };
            known.insert(text.into(), rules);
        }
        for ends in [&mut index.beginnings, &mut index.ends] {
            ends.lengths = ends.rules.keys().map(|text| text.len()).collect();
            ends.lengths.sort_unstable();
            ends.lengths.dedup();
        }
        if !inner.0.is_empty() {
            let texts =
                AhoCorasick::new(&inner.0).map_err(|error| format!("rules too large to index: {error}"))?;
            index.inner = Some(Inner { texts, rules: inner.1 });
        }
        Ok(index)
    }
}

impl Found {
    fn of(rules: Vec<usize>, count: usize) -> Found {
        if rules.len() < count.div_ceil(64) {
            return Found::List(rules);
        }
        let mut set = Scope::with_rules(count);
        rules.into_iter().for_each(|rule| set.insert(rule));
        Found::Set(set)
    }
}

/// Most globs that one with braces becomes.
const ALTERNATIVES: usize = 64;

/// The globs of which one matches where this one does: `{a,b}*` is `a*` and `b*`. One that is not so simple stays.
fn alternatives(glob: &str) -> Vec<String> {
    let mut done = vec![String::new()];
    let mut rest = glob;
    while let Some((before, behind)) = rest.split_once('{') {
        let Some((inside, after)) = behind.split_once('}') else { return vec![glob.to_owned()] };
        let choices: Vec<&str> = inside.split(',').collect();
        let is_simple = !glob.contains(['[', ']', '\\']) && !inside.contains('{');
        if !is_simple || done.len() * choices.len() > ALTERNATIVES {
            return vec![glob.to_owned()];
        }
        done = done
            .iter()
            .flat_map(|begun| choices.iter().map(move |choice| format!("{begun}{before}{choice}")))
            .collect();
        rest = after;
    }
    done.iter_mut().for_each(|glob| glob.push_str(rest));
    // Two stars side by side mean something else than one.
    let is_same = |done: &String| !done.contains("**") && compile_glob(done, "").is_ok();
    if done.iter().all(is_same) { done } else { vec![glob.to_owned()] }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(globs: &[String]) -> Index {
        let mut builder = IndexBuilder::default();
        globs.iter().enumerate().for_each(|(rule, glob)| builder.add(rule, &Globs::One(glob.clone())));
        builder.build(globs.len()).unwrap()
    }

    fn find(index: &Index, text: &str) -> Vec<usize> {
        let mut found = Candidates::default();
        index.find(text, &mut found);
        let mut rules = found.rules();
        rules.sort_unstable();
        rules.dedup();
        rules
    }

    #[test]
    fn fixed_text_is_what_tells_most() {
        let of = |glob| Fixed::of(glob);
        assert_eq!(of("read"), [Fixed::Whole("read")]);
        assert_eq!(of("read_*"), [Fixed::Beginning("read_")]);
        assert_eq!(of("*.a.b?"), [Fixed::Inner(".a.b")]);
        assert_eq!(of("a*bc*d"), [Fixed::Beginning("a"), Fixed::End("d"), Fixed::Inner("bc")]);
        assert_eq!(of("a[bc]d"), [Fixed::Beginning("a"), Fixed::End("d")]);
        assert_eq!(of("**/b"), [Fixed::End("b")]);
        assert_eq!(of("[!a]?"), []);
        assert_eq!(alternatives("{get,put}_{a,b*}"), ["get_a", "get_b*", "put_a", "put_b*"]);
        for same in ["{a,{b,c}}", "[{]a,b}", "*{*,a}", "a}"] {
            assert_eq!(alternatives(same), [same]);
        }
    }

    #[test]
    fn rules_that_share_text_are_found_by_what_they_do_not_share() {
        let globs: Vec<String> = (0..300).map(|n| format!("tool_*_{n}*")).collect();
        assert_eq!(find(&index(&globs), "tool_a_299"), [2, 29, 299]);
        assert_eq!(find(&index(&globs), "tool_a"), [0; 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// No glob that matches is missed.
        #[test]
        fn nothing_is_missed(
            globs in prop::collection::vec("[ab/*?!,ü]{1,7}|[ab*]{0,2}\\{[ab*,]{0,4}\\}[ab{},*]{0,3}|(a|b|/|\\*|\\*\\*/|\\[a\\]|\\[!b,*\\]|\\\\\\*|\\?){1,6}", 1..9),
            texts in prop::collection::vec("[ab/*,ü]{0,6}", 1..20),
        ) {
            let globs: Vec<String> = globs.into_iter().filter(|glob| compile_glob(glob, "").is_ok()).collect();
            let index = index(&globs);
            for text in &texts {
                let found = find(&index, text);
                for (rule, glob) in globs.iter().enumerate() {
                    let matches = Glob::new(glob).unwrap().compile_matcher().is_match(text);
                    prop_assert!(!matches || found.contains(&rule), "{glob} matches {text}");
                }
            }
        }
    }
}
