//! A template as a tree. It is immutable and shared: a macro that was defined in a rendering holds a part of it.

use std::sync::Arc;

/// An expression.
#[derive(Debug)]
pub(super) struct Expr {
    pub(super) node: Box<Node>,
    /// Levels below and with this one: the parser bounds them, so that walking the tree needs a bounded stack.
    pub(super) depth: usize,
}

#[derive(Debug)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// `test`, then, else; without else it is undefined.
    If(Expr, Expr, Option<Expr>),
    And(Expr, Expr),
    Or(Expr, Expr),
    Not(Expr),
    Negative(Expr),
    Positive(Expr),
    Binary(Binary, Expr, Expr),
    /// `a ~ b ~ c`
    Concat(Vec<Expr>),
    /// `a < b < c`
    Compare(Expr, Vec<(Comparison, Expr)>),
    Attribute(Expr, Arc<str>),
    Item(Expr, Expr),
    Slice(Expr, [Option<Expr>; 3]),
    Call(Expr, Arguments),
    Filter(Expr, Arc<str>, Arguments),
    Test(Expr, Arc<str>, Arguments),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

/// What stands between a call's parentheses.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Arc<str>, Expr)>,
    /// `*list`
    pub(super) rest: Option<Expr>,
    /// `**dict`
    pub(super) named_rest: Option<Expr>,
}

/// What a value is given to.
#[derive(Debug)]
pub(super) enum Target {
    Name(Arc<str>),
    /// `namespace.attribute`
    Field(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) struct Statement {
    /// From 1.
    pub(super) line: usize,
    pub(super) node: StatementNode,
}

#[derive(Debug)]
pub(super) enum StatementNode {
    Data(String),
    Print(Expr),
    Set(Target, Expr),
    SetBlock {
        target: Target,
        filters: Vec<(Arc<str>, Arguments)>,
        body: Vec<Statement>,
    },
    If {
        branches: Vec<(Expr, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    For(Arc<Loop>),
    Macro(Arc<Macro>),
    Call {
        call: Expr,
        block: Arc<Macro>,
    },
    FilterBlock {
        filters: Vec<(Arc<str>, Arguments)>,
        body: Vec<Statement>,
    },
    With {
        values: Vec<(Target, Expr)>,
        body: Vec<Statement>,
    },
    /// `block`, `generation`, `autoescape`: a body with its own variables.
    Scope(Vec<Statement>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct Loop {
    pub(super) target: Target,
    pub(super) iterable: Expr,
    pub(super) test: Option<Expr>,
    pub(super) recursive: bool,
    /// Whether the body names `loop`.
    pub(super) uses_loop: bool,
    pub(super) body: Vec<Statement>,
    pub(super) otherwise: Vec<Statement>,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Arc<str>,
    pub(super) parameters: Vec<(Arc<str>, Option<Expr>)>,
    /// Whether the body names `varargs`, `kwargs`, `caller`: without that, they are refused.
    pub(super) takes_varargs: bool,
    pub(super) takes_kwargs: bool,
    pub(super) takes_caller: bool,
    pub(super) body: Vec<Statement>,
}
