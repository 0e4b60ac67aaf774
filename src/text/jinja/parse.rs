//! Jinja2's grammar: expressions here, statements in `parse/statement.rs`.

mod statement;

use std::sync::Arc;

use super::ast::{Arguments, Binary, Comparison, Expr, Node, Statement};
use super::lex::{self, SyntaxError, Token};

/// Most levels of an expression: what is deeper was not written by hand, and would need an unbounded stack.
const DEEPEST: usize = 120;

/// Most blocks and brackets inside of each other.
const NESTED: usize = 60;

/// The statements of a template, and all names that its expressions read.
pub(super) fn template(source: &str) -> Result<(Vec<Statement>, Vec<Arc<str>>), SyntaxError> {
    let tokens = lex::tokens(source)?;
    let mut parser = Parser { tokens, at: 0, names: Vec::new(), nested: 0, loops: 0 };
    let body = parser.body(&[])?;
    match parser.peek() {
        Token::End => Ok((body, parser.names)),
        _ => parser.fail("the template goes on where its end was expected"),
    }
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    /// All names read so far, so that a macro or loop can tell which ones its body has.
    names: Vec<Arc<str>>,
    nested: usize,
    /// Loops around, where `break` and `continue` have a meaning.
    loops: usize,
}

type Parsed<T> = Result<T, SyntaxError>;

impl Parser {
    fn peek(&self) -> &Token {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> &Token {
        self.tokens.get(self.at + ahead).map_or(&Token::End, |(token, _)| token)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |&(_, line)| line)
    }

    fn fail<T>(&self, problem: impl Into<String>) -> Parsed<T> {
        Err(SyntaxError { line: self.line(), problem: problem.into() })
    }

    fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        let found = match self.peek() {
            Token::End => "the end of the template".to_owned(),
            Token::BlockEnd => "%}".to_owned(),
            Token::PrintEnd => "}}".to_owned(),
            Token::Name(name) => format!("{name:?}"),
            Token::Op(op) => format!("{op:?}"),
            _ => "a value".to_owned(),
        };
        self.fail(format!("unexpected {found}, {wanted} is wanted"))
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Token::Op(found) if *found == op)
    }

    fn take_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.at += usize::from(found);
        found
    }

    fn want_op(&mut self, op: &str) -> Parsed<()> {
        if self.take_op(op) { Ok(()) } else { self.unexpected(&format!("{op:?}")) }
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Token::Name(found) if &**found == name)
    }

    fn take_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn want_any_name(&mut self) -> Parsed<Arc<str>> {
        match self.peek() {
            Token::Name(name) => {
                let name = Arc::clone(name);
                self.at += 1;
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn make(&self, node: Node, below: usize) -> Parsed<Expr> {
        if below >= DEEPEST {
            return self.fail(format!("an expression has more than {DEEPEST} levels"));
        }
        Ok(Expr { node: Box::new(node), depth: below + 1 })
    }

    /// Runs `parse` one level further in.
    fn inside<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.nested += 1;
        if self.nested > NESTED {
            return self.fail(format!("more than {NESTED} blocks or brackets are inside of each other"));
        }
        let result = parse(self);
        self.nested -= 1;
        result
    }

    /// An expression, with `a if b else c`.
    fn expression(&mut self) -> Parsed<Expr> {
        self.inside(|parser| {
            let mut value = parser.or()?;
            while parser.take_name("if") {
                let test = parser.or()?;
                let otherwise = if parser.take_name("else") { Some(parser.expression()?) } else { None };
                let below = value.depth.max(test.depth).max(otherwise.as_ref().map_or(0, |expr| expr.depth));
                value = parser.make(Node::If(test, value, otherwise), below)?;
            }
            Ok(value)
        })
    }

    fn or(&mut self) -> Parsed<Expr> {
        let mut left = self.and()?;
        while self.take_name("or") {
            let right = self.and()?;
            let below = left.depth.max(right.depth);
            left = self.make(Node::Or(left, right), below)?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Parsed<Expr> {
        let mut left = self.not()?;
        while self.take_name("and") {
            let right = self.not()?;
            let below = left.depth.max(right.depth);
            left = self.make(Node::And(left, right), below)?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Parsed<Expr> {
        if !self.take_name("not") {
            return self.compare();
        }
        let inner = self.inside(Self::not)?;
        let below = inner.depth;
        self.make(Node::Not(inner), below)
    }

    fn compare(&mut self) -> Parsed<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        let mut below = first.depth;
        loop {
            let comparison = match self.peek() {
                Token::Op("==") => Comparison::Equal,
                Token::Op("!=") => Comparison::NotEqual,
                Token::Op("<") => Comparison::Less,
                Token::Op("<=") => Comparison::LessOrEqual,
                Token::Op(">") => Comparison::Greater,
                Token::Op(">=") => Comparison::GreaterOrEqual,
                Token::Name(name) if &**name == "in" => Comparison::In,
                Token::Name(name) if &**name == "not" => {
                    if !matches!(self.peek_at(1), Token::Name(name) if &**name == "in") {
                        break;
                    }
                    self.at += 1;
                    Comparison::NotIn
                }
                _ => break,
            };
            self.at += 1;
            let right = self.sum()?;
            below = below.max(right.depth);
            rest.push((comparison, right));
        }
        if rest.is_empty() { Ok(first) } else { self.make(Node::Compare(first, rest), below) }
    }

    fn sum(&mut self) -> Parsed<Expr> {
        self.binary(&[("+", Binary::Add), ("-", Binary::Subtract)], Self::concat)
    }

    fn concat(&mut self) -> Parsed<Expr> {
        let mut parts = vec![self.product()?];
        while self.take_op("~") {
            parts.push(self.product()?);
        }
        match parts.pop() {
            Some(only) if parts.is_empty() => Ok(only),
            last => {
                parts.extend(last);
                let below = depth(&parts);
                self.make(Node::Concat(parts), below)
            }
        }
    }

    fn product(&mut self) -> Parsed<Expr> {
        let ops =
            [("*", Binary::Multiply), ("/", Binary::Divide), ("//", Binary::FloorDivide), ("%", Binary::Remainder)];
        self.binary(&ops, |parser| parser.binary(&[("**", Binary::Power)], |parser| parser.unary(true)))
    }

    fn binary(
        &mut self,
        ops: &[(&'static str, Binary)],
        mut operand: impl FnMut(&mut Self) -> Parsed<Expr>,
    ) -> Parsed<Expr> {
        let mut left = operand(self)?;
        while let Some(&(_, op)) = ops.iter().find(|(op, _)| self.is_op(op)) {
            self.at += 1;
            let right = operand(self)?;
            let below = left.depth.max(right.depth);
            left = self.make(Node::Binary(op, left, right), below)?;
        }
        Ok(left)
    }

    /// With its sign, attributes, calls and, where `filters` says so, filters and tests.
    fn unary(&mut self, filters: bool) -> Parsed<Expr> {
        let minus = self.is_op("-");
        let mut value = if minus || self.is_op("+") {
            self.at += 1;
            let inner = self.inside(|parser| parser.unary(false))?;
            let below = inner.depth;
            self.make(if minus { Node::Negative(inner) } else { Node::Positive(inner) }, below)?
        } else {
            self.primary()?
        };
        value = self.postfix(value)?;
        if filters { self.filtered(value) } else { Ok(value) }
    }

    /// The filters, tests and calls that follow a value.
    fn filtered(&mut self, mut value: Expr) -> Parsed<Expr> {
        loop {
            if self.take_op("|") {
                value = self.filter(value)?;
            } else if self.is_name("is") {
                value = self.test(value)?;
            } else if self.is_op("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let node = match self.next() {
            Token::Name(name) => match &*name {
                "true" | "True" => Node::Bool(true),
                "false" | "False" => Node::Bool(false),
                "none" | "None" => Node::None,
                _ => {
                    self.names.push(Arc::clone(&name));
                    Node::Name(name)
                }
            },
            Token::Str(mut text) => {
                while let Token::Str(more) = self.peek() {
                    text.push_str(more);
                    self.at += 1;
                }
                Node::Str(text)
            }
            Token::Int(number) => Node::Int(number),
            Token::Float(number) => Node::Float(number),
            Token::Op("(") => {
                let inner =
                    if self.is_op(")") { self.make(Node::Tuple(Vec::new()), 0)? } else { self.tuple(true, &[])? };
                self.want_op(")")?;
                return Ok(inner);
            }
            Token::Op("[") => {
                let items = self.list("]")?;
                let below = depth(&items);
                return self.make(Node::List(items), below);
            }
            Token::Op("{") => return self.dict(),
            _ => {
                self.at -= 1;
                return self.unexpected("a value");
            }
        };
        self.make(node, 0)
    }

    /// Values with commas between them up to `close`, which is taken too.
    fn list(&mut self, close: &str) -> Parsed<Vec<Expr>> {
        let mut items = Vec::new();
        while !self.take_op(close) {
            if !items.is_empty() {
                self.want_op(",")?;
                if self.take_op(close) {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(items)
    }

    fn dict(&mut self) -> Parsed<Expr> {
        let mut items = Vec::new();
        let mut below = 0;
        while !self.take_op("}") {
            if !items.is_empty() {
                self.want_op(",")?;
                if self.take_op("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.want_op(":")?;
            let value = self.expression()?;
            below = below.max(key.depth).max(value.depth);
            items.push((key, value));
        }
        self.make(Node::Dict(items), below)
    }

    /// One expression, or several with commas between them, which are a tuple. `condition` says whether `a if b` may
    /// stand here; one of the names in `stop` ends it.
    fn tuple(&mut self, condition: bool, stop: &[&str]) -> Parsed<Expr> {
        let mut items = Vec::new();
        let mut comma = false;
        loop {
            let ends = matches!(self.peek(), Token::BlockEnd | Token::PrintEnd | Token::Op(")"))
                || stop.iter().any(|name| self.is_name(name));
            if ends && !items.is_empty() {
                break;
            }
            items.push(if condition { self.expression()? } else { self.inside(Self::or)? });
            if !self.take_op(",") {
                break;
            }
            comma = true;
        }
        match items.pop() {
            Some(only) if !comma => Ok(only),
            last => {
                items.extend(last);
                let below = depth(&items);
                self.make(Node::Tuple(items), below)
            }
        }
    }

    fn postfix(&mut self, mut value: Expr) -> Parsed<Expr> {
        loop {
            let below = value.depth;
            if self.take_op(".") {
                let node = match self.next() {
                    Token::Name(name) => Node::Attribute(value, name),
                    Token::Int(number) => {
                        let index = self.make(Node::Int(number), 0)?;
                        Node::Item(value, index)
                    }
                    _ => {
                        self.at -= 1;
                        return self.unexpected("a name or a number");
                    }
                };
                value = self.make(node, below)?;
            } else if self.take_op("[") {
                value = self.subscript(value)?;
            } else if self.is_op("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn subscript(&mut self, value: Expr) -> Parsed<Expr> {
        let mut parts: [Option<Expr>; 3] = [None, None, None];
        let mut colons = 0;
        loop {
            if self.take_op(":") {
                colons += 1;
                if colons > 2 {
                    return self.unexpected("\"]\"");
                }
            } else if self.take_op("]") {
                break;
            } else if self.is_op(",") {
                return self.fail("an index of several values is not supported");
            } else {
                let part = self.expression()?;
                match parts.get_mut(colons) {
                    Some(place @ None) => *place = Some(part),
                    _ => return self.unexpected("\"]\""),
                }
            }
        }
        let below = parts.iter().flatten().map(|part| part.depth).max().unwrap_or(0).max(value.depth);
        if colons > 0 {
            return self.make(Node::Slice(value, parts), below);
        }
        match parts {
            [Some(index), _, _] => self.make(Node::Item(value, index), below),
            _ => self.fail("an index is missing between [ and ]"),
        }
    }

    fn call(&mut self, callee: Expr) -> Parsed<Expr> {
        let (arguments, below) = self.arguments()?;
        let below = below.max(callee.depth);
        self.make(Node::Call(callee, arguments), below)
    }

    /// From `(` to `)`, and the deepest level in it.
    fn arguments(&mut self) -> Parsed<(Arguments, usize)> {
        self.want_op("(")?;
        let mut arguments = Arguments::default();
        let mut below = 0;
        let mut first = true;
        while !self.take_op(")") {
            if !first {
                self.want_op(",")?;
                if self.take_op(")") {
                    break;
                }
            }
            first = false;
            let named = matches!((self.peek(), self.peek_at(1)), (Token::Name(_), Token::Op("=")));
            let plain = arguments.rest.is_none() && arguments.named_rest.is_none();
            if self.take_op("*") && plain {
                let rest = self.expression()?;
                below = below.max(rest.depth);
                arguments.rest = Some(rest);
            } else if self.take_op("**") && arguments.named_rest.is_none() {
                let rest = self.expression()?;
                below = below.max(rest.depth);
                arguments.named_rest = Some(rest);
            } else if named && arguments.named_rest.is_none() {
                let name = self.want_any_name()?;
                self.at += 1;
                let value = self.expression()?;
                below = below.max(value.depth);
                arguments.named.push((name, value));
            } else if plain && arguments.named.is_empty() {
                let value = self.expression()?;
                below = below.max(value.depth);
                arguments.positional.push(value);
            } else {
                return self.fail("the arguments of a call are in a wrong order");
            }
        }
        Ok((arguments, below))
    }

    /// A dotted name and, if they are there, arguments.
    fn named_call(&mut self) -> Parsed<(Arc<str>, Arguments, usize)> {
        let mut name = self.want_any_name()?;
        while self.take_op(".") {
            name = format!("{name}.{}", self.want_any_name()?).into();
        }
        let (arguments, below) = if self.is_op("(") { self.arguments()? } else { (Arguments::default(), 0) };
        Ok((name, arguments, below))
    }

    fn filter(&mut self, value: Expr) -> Parsed<Expr> {
        let (name, arguments, below) = self.named_call()?;
        let below = below.max(value.depth);
        self.make(Node::Filter(value, name, arguments), below)
    }

    fn test(&mut self, value: Expr) -> Parsed<Expr> {
        self.at += 1;
        let negated = self.take_name("not");
        let (name, mut arguments, mut below) = self.named_call()?;
        let called = matches!(self.tokens.get(self.at.wrapping_sub(1)), Some((Token::Op(")"), _)));
        let argument = match self.peek() {
            Token::Name(name) => !matches!(&**name, "else" | "or" | "and" | "if" | "not" | "in" | "recursive"),
            Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("(" | "[" | "{") => true,
            _ => false,
        };
        if argument && !called {
            if self.is_name("is") {
                return self.fail("tests cannot follow one another with is");
            }
            let primary = self.inside(Self::primary)?;
            let primary = self.postfix(primary)?;
            below = below.max(primary.depth);
            arguments.positional.push(primary);
        }
        let below = below.max(value.depth);
        let test = self.make(Node::Test(value, name, arguments), below)?;
        let below = test.depth;
        if negated { self.make(Node::Not(test), below) } else { Ok(test) }
    }
}

fn depth(exprs: &[Expr]) -> usize {
    exprs.iter().map(|expr| expr.depth).max().unwrap_or(0)
}
