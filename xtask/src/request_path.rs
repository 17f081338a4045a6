//! The path of one proxied request through the files of the proxy, as a reader follows it.
//!
//! The reader begins at `handle` and opens every function of the proxy that is called, once, where it is called first.
//! A call of a function in another file is one file switch. Not followed: calls on the way to an early `return` and in
//! closures that make errors (they are not on the path of a request that is answered), functions of up to three lines
//! (their name is enough), and methods whose name several types have.

use std::collections::{BTreeSet, HashSet};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Block, Expr, ExprCall, ExprClosure, ExprMethodCall, ExprReturn, FnArg, ImplItem, Item, Signature, Stmt, Type,
};

use crate::source_tree::{SourceTree, is_test_item};

/// The folder whose files are counted.
const PROXY_FOLDER: &str = "crates/foldline-server/src/proxy/";
/// File and function at which a request begins.
const START: (&str, &str) = ("handler.rs", "handle");
/// Functions with at most this many lines are not opened.
const MAX_TRIVIAL_LINES: usize = 3;
/// Methods of the standard library and of others; a type of the proxy may have one of the same name.
const COMMON_METHODS: [&str; 16] = [
    "accept", "count", "find", "flush", "get", "load", "observe", "parse", "push", "read", "set", "store", "take",
    "version", "wait", "write",
];
/// Methods whose closures make errors.
const ERROR_CLOSURES: [&str; 6] =
    ["inspect_err", "map_err", "ok_or_else", "or_else", "unwrap_or_else", "unwrap_or_default"];

/// The files that a reader opens, and each switch between two of them.
#[derive(Debug, Default)]
pub(crate) struct RequestPath {
    /// Lines of the form `from -> to function`.
    pub(crate) switches: Vec<String>,
    pub(crate) files: BTreeSet<String>,
}

/// Follows a request through the proxy.
pub(crate) fn request_path(tree: &SourceTree) -> RequestPath {
    let functions = proxy_functions(tree);
    let mut path = RequestPath::default();
    let mut opened = HashSet::new();
    if let Some(start) = functions.iter().position(|function| (function.file, &*function.name) == START) {
        path.files.insert(START.0.to_owned());
        open(start, &functions, &mut opened, &mut path);
    }
    path
}

/// A function of the proxy.
struct PathFunction<'a> {
    /// Path below the folder of the proxy.
    file: &'a str,
    /// The type whose function it is.
    owner: Option<String>,
    name: String,
    is_method: bool,
    lines: usize,
    block: &'a Block,
}

/// A call in the body of a function.
enum ProxyCall {
    /// The last two segments of a path.
    Path(Option<String>, String),
    Method(String),
}

fn open(at: usize, functions: &[PathFunction<'_>], opened: &mut HashSet<usize>, path: &mut RequestPath) {
    if !opened.insert(at) {
        return;
    }
    let caller = &functions[at];
    let mut calls = CallVisitor::default();
    calls.visit_block(caller.block);
    for call in &calls.found {
        let Some(callee) = resolve(call, caller, functions) else { continue };
        if functions[callee].lines <= MAX_TRIVIAL_LINES || opened.contains(&callee) {
            continue;
        }
        let to = &functions[callee];
        if to.file != caller.file {
            path.switches.push(format!("{} -> {} {}", caller.file, to.file, to.name));
            path.files.insert(to.file.to_owned());
        }
        open(callee, functions, opened, path);
    }
}

/// Returns the function that a call means, if its name leaves no doubt.
fn resolve(call: &ProxyCall, caller: &PathFunction<'_>, functions: &[PathFunction<'_>]) -> Option<usize> {
    let only = |matches: &dyn Fn(&PathFunction<'_>) -> bool| {
        let mut found = (0..functions.len()).filter(|&at| matches(&functions[at]));
        found.next().filter(|_| found.next().is_none())
    };
    match call {
        ProxyCall::Method(name) if COMMON_METHODS.contains(&&**name) => None,
        ProxyCall::Method(name) => only(&|function| {
            function.is_method
                && function.name == *name
                && function.owner == caller.owner
                && function.file == caller.file
        })
        .or_else(|| only(&|function| function.is_method && function.name == *name)),
        ProxyCall::Path(Some(owner), name) if owner == "Self" => {
            only(&|function| function.name == *name && function.owner == caller.owner)
        }
        ProxyCall::Path(Some(owner), name) => {
            only(&|function| function.name == *name && function.owner.as_ref() == Some(owner)).or_else(|| {
                let file = format!("{owner}.rs");
                only(&|function| function.owner.is_none() && function.name == *name && function.file.ends_with(&file))
            })
        }
        ProxyCall::Path(None, name) => {
            only(&|function| function.owner.is_none() && function.name == *name && function.file == caller.file)
                .or_else(|| only(&|function| function.owner.is_none() && function.name == *name))
        }
    }
}

fn proxy_functions(tree: &SourceTree) -> Vec<PathFunction<'_>> {
    let mut functions = Vec::new();
    for file in &tree.rust_files {
        let Some(path) = file.path.strip_prefix(PROXY_FOLDER) else { continue };
        let mut add = |owner: Option<String>, signature: &Signature, block| {
            functions.push(PathFunction {
                file: path,
                owner,
                name: signature.ident.to_string(),
                is_method: matches!(signature.inputs.first(), Some(FnArg::Receiver(_))),
                lines: line_count(signature, block),
                block,
            });
        };
        for item in &file.syntax.items {
            match item {
                Item::Fn(item) if !is_test_item(&item.attrs) => add(None, &item.sig, &item.block),
                Item::Impl(item) if !is_test_item(&item.attrs) => {
                    let owner = type_name(&item.self_ty);
                    for member in &item.items {
                        if let ImplItem::Fn(member) = member {
                            add(owner.clone(), &member.sig, &member.block);
                        }
                    }
                }
                _ => {}
            }
        }
    }
    functions
}

fn line_count(signature: &Signature, block: &Block) -> usize {
    block.span().end().line + 1 - signature.span().start().line
}

fn type_name(named: &Type) -> Option<String> {
    match named {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

/// Collects calls in the order of the source.
#[derive(Default)]
struct CallVisitor {
    found: Vec<ProxyCall>,
}

impl<'ast> Visit<'ast> for CallVisitor {
    fn visit_block(&mut self, block: &'ast Block) {
        let leaves = |last: &Stmt| matches!(last, Stmt::Expr(Expr::Return(_) | Expr::Continue(_) | Expr::Break(_), _));
        if !block.stmts.last().is_some_and(leaves) {
            visit::visit_block(self, block);
        }
    }

    fn visit_expr_return(&mut self, _: &'ast ExprReturn) {}

    fn visit_item(&mut self, _: &'ast Item) {}

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        call.args.iter().for_each(|argument| self.visit_expr(argument));
        if let Expr::Path(path) = &*call.func {
            let mut names = path.path.segments.iter().rev().map(|segment| segment.ident.to_string());
            if let Some(name) = names.next() {
                self.found.push(ProxyCall::Path(names.next(), name));
            }
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        self.visit_expr(&call.receiver);
        let method = call.method.to_string();
        let makes_errors = ERROR_CLOSURES.contains(&&*method);
        for argument in call.args.iter().filter(|argument| !(makes_errors && is_closure(argument))) {
            self.visit_expr(argument);
        }
        self.found.push(ProxyCall::Method(method));
    }
}

fn is_closure(argument: &Expr) -> bool {
    matches!(argument, Expr::Closure(ExprClosure { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_tree::testing::tree;

    #[test]
    fn functions_are_opened_once_and_errors_are_not_followed() {
        let long = "let a = 1;\nlet b = 2;\nlet c = 3;\n";
        let handler = format!(
            "fn handle() {{\n if bad {{ return fail(); }}\n read().map_err(|e| fail())?;\n {long} Store::write(); x.sync();\n}}"
        );
        let body = format!("fn read() {{\n{long}Store::write();\n}}\nfn fail() {{\n{long}}}");
        let store = format!(
            "impl Store {{\nfn write() {{\n{long}}}\nfn sync(&self) {{\n{long}short();\n}}\n}}\nfn short() {{}}"
        );
        let files = [("handler.rs", handler), ("body.rs", body), ("store.rs", store)];
        let files: Vec<(String, String)> =
            files.into_iter().map(|(name, text)| (format!("{PROXY_FOLDER}{name}"), text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
        let path = request_path(&tree(&files));
        assert_eq!(
            path.switches,
            ["handler.rs -> body.rs read", "body.rs -> store.rs write", "handler.rs -> store.rs sync"]
        );
        assert_eq!(path.files.len(), 3);
    }
}
