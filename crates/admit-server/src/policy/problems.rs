//! What is wrong with a policy file: all of it at once, each with its place and what was meant.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

use super::shown::{Hides, without_passwords};

/// The most problems that are told: one mistake early in a file may cause many more.
const MAX_PROBLEMS: usize = 50;

/// Where in the file, in bytes.
pub(super) type Span = Range<usize>;

/// A policy file that cannot be used, with everything that is wrong with it.
#[derive(Debug)]
pub struct PolicyErrors {
    file: String,
    problems: Vec<PolicyProblem>,
}

/// One thing that is wrong with a policy file.
#[derive(Clone, Debug)]
pub struct PolicyProblem {
    source: NamedSource<String>,
    span: Span,
    /// What is wrong.
    message: String,
    /// What would be right.
    help: Option<String>,
}

/// Collects what is wrong while a file is read. Shared by all that read a part of it.
#[derive(Debug, Default)]
pub(super) struct Problems(RefCell<Vec<(Span, String, Option<String>)>>);

impl Problems {
    /// Adds a problem. The message names the thing, the help says what to write. What the message repeats of
    /// the file is shown as the file is.
    pub(super) fn add(&self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        let (message, help) = (without_passwords(&message.into()), help.into());
        self.0.borrow_mut().push((span, message, Some(help).filter(|help| !help.is_empty())));
    }

    /// What was read, if nothing was wrong.
    pub(super) fn none_or<T>(
        self,
        file: &str,
        text: &str,
        hides: Hides,
        read: Option<T>,
    ) -> Result<T, PolicyErrors> {
        let mut problems = self.0.into_inner();
        match read {
            Some(read) if problems.is_empty() => Ok(read),
            _ => {
                problems.sort_by_key(|(span, ..)| span.start);
                problems.truncate(MAX_PROBLEMS);
                let source = NamedSource::new(file, hides.shown(text));
                let problems = problems.into_iter().map(|(span, message, help)| PolicyProblem {
                    source: source.clone(),
                    span,
                    message,
                    help,
                });
                Err(PolicyErrors { file: file.to_owned(), problems: problems.collect() })
            }
        }
    }
}

impl PolicyErrors {
    /// All that is wrong, from the top of the file to its end.
    pub fn problems(&self) -> &[PolicyProblem] {
        &self.problems
    }
}

impl fmt::Display for PolicyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, s) = (self.problems.len(), if self.problems.len() == 1 { "" } else { "s" });
        write!(f, "{} cannot be used: {count} problem{s}", self.file)
    }
}

impl std::error::Error for PolicyErrors {}

impl Diagnostic for PolicyErrors {
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.problems.iter().map(|problem| problem as &dyn Diagnostic)))
    }
}

impl PolicyProblem {
    /// The line of its place, from 1.
    pub fn line(&self) -> usize {
        self.source.inner()[..self.span.start].matches('\n').count() + 1
    }

    /// The column of its place in characters, from 1.
    pub fn column(&self) -> usize {
        let before = &self.source.inner()[..self.span.start];
        before.rsplit('\n').next().unwrap_or_default().chars().count() + 1
    }

    /// What would be right.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

impl fmt::Display for PolicyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PolicyProblem {}

impl Diagnostic for PolicyProblem {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(std::iter::once(LabeledSpan::underline(self.span.clone()))))
    }
}
