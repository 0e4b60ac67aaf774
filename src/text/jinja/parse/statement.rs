//! Statements: what stands between `{%` and `%}`.

use std::sync::Arc;

use super::super::ast::{Arguments, Loop, Macro, Node, Statement, StatementNode, Target};
use super::super::lex::Token;
use super::{Parsed, Parser};

impl Parser {
    /// Statements up to a block whose name is in `ends`; its `{%` and name are taken.
    pub(super) fn body(&mut self, ends: &[&str]) -> Parsed<Vec<Statement>> {
        self.inside(|parser| parser.statements(ends).map(|(body, _)| body))
    }

    fn statements(&mut self, ends: &[&str]) -> Parsed<(Vec<Statement>, Arc<str>)> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let node = match self.next() {
                Token::End if ends.is_empty() => {
                    self.at -= 1;
                    return Ok((body, "".into()));
                }
                Token::End => {
                    self.at -= 1;
                    return self.fail(format!("the template ends, but {} is missing", ends.join(" or ")));
                }
                Token::Data(text) => StatementNode::Data(text),
                Token::PrintBegin => {
                    let value = self.tuple(true, &[])?;
                    match self.next() {
                        Token::PrintEnd => StatementNode::Print(value),
                        _ => {
                            self.at -= 1;
                            return self.unexpected("}}");
                        }
                    }
                }
                Token::BlockBegin => {
                    let name = self.want_any_name()?;
                    if ends.contains(&&*name) {
                        return Ok((body, name));
                    }
                    self.statement(&name)?
                }
                _ => {
                    self.at -= 1;
                    return self.unexpected("text or a tag");
                }
            };
            body.push(Statement { line, node });
        }
    }

    fn block_end(&mut self) -> Parsed<()> {
        match self.next() {
            Token::BlockEnd => Ok(()),
            _ => {
                self.at -= 1;
                self.unexpected("%}")
            }
        }
    }

    /// A body with its end tag.
    fn closed(&mut self, end: &str) -> Parsed<Vec<Statement>> {
        self.block_end()?;
        let body = self.body(&[end])?;
        Ok(body)
    }

    fn statement(&mut self, name: &str) -> Parsed<StatementNode> {
        let node = match name {
            "set" => self.set()?,
            "if" => self.branches()?,
            "for" => self.for_loop()?,
            "macro" => {
                let name = self.want_any_name()?;
                StatementNode::Macro(Arc::new(self.macro_from(name, "endmacro")?))
            }
            "call" => self.call_block()?,
            "filter" => {
                let filters = self.filters(true)?;
                StatementNode::FilterBlock { filters, body: self.closed("endfilter")? }
            }
            "with" => self.with()?,
            "print" => self.print()?,
            "break" if self.loops > 0 => StatementNode::Break,
            "continue" if self.loops > 0 => StatementNode::Continue,
            "break" | "continue" => return self.fail(format!("{name} stands outside of a loop")),
            // A mark for training that changes no text.
            "generation" => StatementNode::Scope(self.closed("endgeneration")?),
            "block" => {
                let name = self.want_any_name()?;
                let body = self.closed("endblock")?;
                self.take_name(&name);
                StatementNode::Scope(body)
            }
            "autoescape" => {
                let escaped = self.expression()?;
                if !matches!(*escaped.node, Node::Bool(false)) {
                    return self.fail("autoescape is not supported: a prompt is not HTML");
                }
                StatementNode::Scope(self.closed("endautoescape")?)
            }
            "extends" | "include" | "import" | "from" => {
                return self.fail(format!("{name} is not supported: a chat template is one text"));
            }
            _ => return self.fail(format!("there is no tag {name:?}, or it stands where it has no meaning")),
        };
        self.block_end()?;
        Ok(node)
    }

    /// `print a, b`: one after the other.
    fn print(&mut self) -> Parsed<StatementNode> {
        let mut prints = Vec::new();
        while *self.peek() != Token::BlockEnd {
            if !prints.is_empty() {
                self.want_op(",")?;
            }
            let line = self.line();
            prints.push(Statement { line, node: StatementNode::Print(self.expression()?) });
        }
        Ok(StatementNode::Scope(prints))
    }

    fn set(&mut self) -> Parsed<StatementNode> {
        let target = self.target(&[])?;
        if self.take_op("=") {
            return Ok(StatementNode::Set(target, self.tuple(true, &[])?));
        }
        let filters = self.filters(false)?;
        Ok(StatementNode::SetBlock { target, filters, body: self.closed("endset")? })
    }

    /// `a`, `a.b`, or several with commas.
    fn target(&mut self, stop: &[&str]) -> Parsed<Target> {
        let mut targets = Vec::new();
        let mut comma = false;
        loop {
            let ends = matches!(self.peek(), Token::Op("=" | ")") | Token::BlockEnd)
                || stop.iter().any(|name| self.is_name(name));
            if ends && !targets.is_empty() {
                break;
            }
            targets.push(if self.take_op("(") {
                let inner = self.inside(|parser| parser.target(&[]))?;
                self.want_op(")")?;
                inner
            } else {
                let name = self.want_any_name()?;
                if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
                    return self.fail(format!("{name} cannot be given a value"));
                }
                if self.take_op(".") { Target::Field(name, self.want_any_name()?) } else { Target::Name(name) }
            });
            if !self.take_op(",") {
                break;
            }
            comma = true;
        }
        match targets.pop() {
            Some(only) if !comma => Ok(only),
            last => {
                targets.extend(last);
                Ok(Target::Tuple(targets))
            }
        }
    }

    /// `| one | two(3)`; with `bare`, the first has no bar.
    fn filters(&mut self, bare: bool) -> Parsed<Vec<(Arc<str>, Arguments)>> {
        let mut filters = Vec::new();
        let mut bare = bare;
        while bare || self.take_op("|") {
            bare = false;
            let (name, arguments, _) = self.named_call()?;
            filters.push((name, arguments));
        }
        Ok(filters)
    }

    fn branches(&mut self) -> Parsed<StatementNode> {
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let test = self.tuple(false, &[])?;
            self.block_end()?;
            let (body, end) = self.inside(|parser| parser.statements(&["elif", "else", "endif"]))?;
            branches.push((test, body));
            match &*end {
                "elif" => continue,
                "else" => otherwise = self.closed("endif")?,
                _ => {}
            }
            return Ok(StatementNode::If { branches, otherwise });
        }
    }

    fn for_loop(&mut self) -> Parsed<StatementNode> {
        let target = self.target(&["in"])?;
        if !self.take_name("in") {
            return self.unexpected("in");
        }
        let iterable = self.tuple(false, &["recursive"])?;
        let begin = self.names.len();
        let test = if self.take_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.take_name("recursive");
        self.block_end()?;
        self.loops += 1;
        let (body, end) = self.inside(|parser| parser.statements(&["endfor", "else"]))?;
        self.loops -= 1;
        let uses_loop = self.names_since(begin, "loop");
        let otherwise = if &*end == "else" { self.closed("endfor")? } else { Vec::new() };
        let node = Loop { target, iterable, test, recursive, uses_loop, body, otherwise };
        Ok(StatementNode::For(Arc::new(node)))
    }

    fn names_since(&self, begin: usize, wanted: &str) -> bool {
        self.names.iter().skip(begin).any(|name| &**name == wanted)
    }

    /// Parameters and body of a macro, or of a call's block.
    fn macro_from(&mut self, name: Arc<str>, end: &str) -> Parsed<Macro> {
        let mut parameters: Vec<(Arc<str>, Option<_>)> = Vec::new();
        let begin = self.names.len();
        if self.is_op("(") || end == "endmacro" {
            self.want_op("(")?;
            while !self.take_op(")") {
                if !parameters.is_empty() {
                    self.want_op(",")?;
                }
                let name = self.want_any_name()?;
                let default = if self.take_op("=") { Some(self.expression()?) } else { None };
                if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                    return self.fail("a parameter without a default follows one with a default");
                }
                parameters.push((name, default));
            }
        }
        Ok(Macro { name, parameters, ..self.macro_body(begin, end)? })
    }

    fn macro_body(&mut self, begin: usize, end: &str) -> Parsed<Macro> {
        // A loop around a macro is not one that its body could leave.
        let loops = std::mem::take(&mut self.loops);
        let body = if end == "endmacro" { self.closed(end)? } else { self.body(&[end])? };
        self.loops = loops;
        Ok(Macro {
            name: "".into(),
            parameters: Vec::new(),
            takes_varargs: self.names_since(begin, "varargs"),
            takes_kwargs: self.names_since(begin, "kwargs"),
            takes_caller: self.names_since(begin, "caller"),
            body,
        })
    }

    fn call_block(&mut self) -> Parsed<StatementNode> {
        let mut parameters = Vec::new();
        let begin = self.names.len();
        if self.take_op("(") {
            while !self.take_op(")") {
                if !parameters.is_empty() {
                    self.want_op(",")?;
                }
                let name = self.want_any_name()?;
                let default = if self.take_op("=") { Some(self.expression()?) } else { None };
                parameters.push((name, default));
            }
        }
        let call = self.expression()?;
        if !matches!(*call.node, Node::Call(..)) {
            return self.fail("call wants a call of a macro");
        }
        self.block_end()?;
        let block = Macro { name: "caller".into(), parameters, ..self.macro_body(begin, "endcall")? };
        Ok(StatementNode::Call { call, block: Arc::new(block) })
    }

    fn with(&mut self) -> Parsed<StatementNode> {
        let mut values = Vec::new();
        while *self.peek() != Token::BlockEnd {
            if !values.is_empty() {
                self.want_op(",")?;
            }
            let target = self.inside(|parser| {
                let name = parser.want_any_name()?;
                Ok(Target::Name(name))
            })?;
            self.want_op("=")?;
            values.push((target, self.expression()?));
        }
        Ok(StatementNode::With { values, body: self.closed("endwith")? })
    }
}
