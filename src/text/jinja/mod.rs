//! Jinja2, as `transformers` sets it up for chat templates.
//!
//! Templates are written for Python, and a prompt that differs in one space from what a model was trained with costs
//! quality that nobody sees. So this is Jinja2's language with Python's values, methods and printing; the corpus in
//! `tests/data/templates` compares it with Jinja2 itself. There is a second reason to have an interpreter of our own:
//! each string knows which of its bytes are content and which are the template's ([`text`]), and no engine for plain
//! strings can tell that.
//!
//! Templates come with model files, so they are not trusted: steps ([`exec::FUEL`]), sizes of strings and lists, and
//! levels of everything that is walked by recursion are bounded.

mod args;
mod ast;
mod attribute;
mod call;
mod checks;
mod eval;
pub(super) mod exec;
mod filters;
mod format;
mod json;
mod lex;
mod methods;
mod ops;
mod parse;
mod print;
mod scope;
mod text;
mod value;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::Moment;

/// Why a rendering ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    /// `raise_exception`, with its words.
    Raised(String),
    /// A mistake of the template, or a value that it cannot work with.
    Failed(String),
    /// It took too many steps.
    Endless,
}

impl Fault {
    fn failed(problem: impl Into<String>) -> Self {
        Self::Failed(problem.into())
    }
}

/// A compiled template.
#[derive(Debug)]
pub(super) struct Program {
    body: Vec<ast::Statement>,
    /// Every name that its expressions read.
    names: HashSet<Arc<str>>,
}

/// A text, and the ascending ranges of its bytes that are content.
type Written = (String, Vec<Range<usize>>);

/// A variable that a rendering is given.
#[derive(Clone, Copy, Debug)]
pub(super) enum Given<'v> {
    /// Text of the template's own kind: tokens of the model.
    Own(&'v str),
    /// Anything that came from outside: its strings are content.
    Content(&'v serde_json::Value),
    /// Messages: content, but for the names of roles.
    Messages(&'v [serde_json::Value]),
}

impl Program {
    /// Compiles a template; the error has a line, from 1.
    pub(super) fn new(source: &str) -> Result<Self, (usize, String)> {
        let parsed = parse::template(&lex::normalise(source)).map_err(|error| (error.line, error.problem))?;
        let (body, names) = parsed;
        Ok(Self { body, names: names.into_iter().collect() })
    }

    /// The text, and the ascending byte ranges of it that are content; a fault with its line, from 1.
    pub(super) fn render<'v>(
        &self,
        variables: impl IntoIterator<Item = (&'v str, Given<'v>)>,
        now: Moment,
    ) -> Result<Written, (usize, Fault)> {
        let mut interpreter = exec::Interpreter::new(now);
        let result = interpreter.run(&self.body, variables);
        let line = interpreter.line();
        let text = result.map_err(|fault| (line, fault))?;
        Ok((text.as_str().to_owned(), text.ranges().to_vec()))
    }

    /// Whether the template reads a variable of this name anywhere.
    pub(super) fn reads(&self, name: &str) -> bool {
        self.names.contains(name)
    }
}
