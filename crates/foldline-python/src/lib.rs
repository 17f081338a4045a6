//! The native module `foldline._native` of the Python package: strings in, strings out.
//!
//! Python objects are converted to JSON and back in Python (`python/foldline/_session.py`). The interpreter lock is
//! released around all work. Nothing is decided here.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldline_embed::{EmbedError, EmbedErrorKind, EmbeddedSession, FoldedBody, ReplayOptions, SessionOptions};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{PyTypeInfo, create_exception};

mod rendering;

use rendering::{MessageFields, RenderedList, message_fields};

create_exception!(foldline, FoldlineError, pyo3::exceptions::PyException, "An error of foldline.");
create_exception!(foldline, InvalidInput, FoldlineError, "An argument is not valid.");
create_exception!(foldline, UnknownHandle, FoldlineError, "No original has this handle.");
create_exception!(foldline, ArchiveError, FoldlineError, "The archive cannot be opened, read or written.");
create_exception!(
    foldline,
    CannotFit,
    FoldlineError,
    "The conversation cannot be folded to the budget. Attributes: floor, budget, largest."
);

/// Converts an error to its exception.
fn to_exception(py: Python<'_>, error: &EmbedError) -> PyErr {
    let message = error.to_string();
    match error.kind() {
        EmbedErrorKind::CannotFit { floor, budget, largest } => {
            let exception = CannotFit::new_err(message);
            let value = exception.value(py);
            let set = value
                .setattr("floor", *floor)
                .and_then(|()| value.setattr("budget", *budget))
                .and_then(|()| value.setattr("largest", *largest));
            set.err().unwrap_or(exception)
        }
        EmbedErrorKind::InvalidInput => InvalidInput::new_err(message),
        EmbedErrorKind::UnknownHandle => UnknownHandle::new_err(message),
        EmbedErrorKind::Archive => ArchiveError::new_err(message),
        _ => FoldlineError::new_err(message),
    }
}

/// Runs work without the interpreter lock.
fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, EmbedError> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| to_exception(py, &error))
}

/// Handle, tool, line and snippet of an original that was found.
type HitFields = (String, Option<String>, usize, String);

/// A growing conversation in one dialect, as JSON.
#[pyclass(module = "foldline._native", frozen)]
struct Session(Mutex<EmbeddedSession>);

impl Session {
    fn lock(&self) -> MutexGuard<'_, EmbeddedSession> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Session {
    #[new]
    fn new(py: Python<'_>, options: &str) -> PyResult<Self> {
        let session = detached(py, || EmbeddedSession::new(&SessionOptions::from_json(options)?))?;
        Ok(Self(Mutex::new(session)))
    }

    /// Adds the messages of a JSON list.
    fn push(&self, py: Python<'_>, messages: &str) -> PyResult<()> {
        detached(py, || self.lock().push(messages))
    }

    /// Sets the tools and the system prompt, as JSON.
    #[pyo3(signature = (tools=None, system=None))]
    fn set_context(&self, py: Python<'_>, tools: Option<&str>, system: Option<&str>) -> PyResult<()> {
        detached(py, || self.lock().set_context(tools, system))
    }

    /// Decides what to send now, and returns what changed.
    fn request(&self, py: Python<'_>) -> PyResult<RenderedList> {
        detached(py, || self.lock().plan_request().map(RenderedList::from))
    }

    /// Makes the next request start at its first message.
    fn forget_rendering(&self) {
        self.lock().forget_rendering();
    }

    fn unfold<'py>(&self, py: Python<'py>, handle: &str) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = detached(py, || self.lock().unfold(handle))?;
        Ok(PyBytes::new(py, &bytes))
    }

    #[pyo3(signature = (arguments, room=None))]
    fn answer(&self, py: Python<'_>, arguments: &str, room: Option<u64>) -> String {
        py.detach(|| self.lock().answer_call(arguments, room))
    }

    /// Returns hits as tuples of handle, tool, line and snippet.
    fn search(&self, py: Python<'_>, words: &str, limit: usize) -> PyResult<Vec<HitFields>> {
        let hits = detached(py, || self.lock().search(words, limit))?;
        Ok(hits.into_iter().map(|hit| (hit.handle, hit.tool, hit.line, hit.snippet)).collect())
    }

    #[getter]
    fn budget(&self) -> u64 {
        self.lock().budget()
    }

    fn __len__(&self) -> usize {
        self.lock().json_session().len()
    }
}

/// A folded request body.
#[pyclass(module = "foldline._native", frozen)]
struct Folded(FoldedBody);

#[pymethods]
impl Folded {
    #[getter]
    fn body(&self) -> &str {
        &self.0.body
    }

    #[getter]
    fn tokens(&self) -> u64 {
        self.0.tokens
    }

    #[getter]
    fn received_tokens(&self) -> u64 {
        self.0.received_tokens
    }

    fn unfold<'py>(&self, py: Python<'py>, handle: &str) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = detached(py, || self.0.unfold(handle))?;
        Ok(PyBytes::new(py, &bytes))
    }
}

#[pyfunction]
fn fold(py: Python<'_>, body: &str, options: &str) -> PyResult<Folded> {
    detached(py, || foldline_embed::fold_body(body, &SessionOptions::from_json(options)?)).map(Folded)
}

#[pyfunction]
#[pyo3(signature = (text, model=None, format=None))]
fn count_tokens(py: Python<'_>, text: &str, model: Option<&str>, format: Option<&str>) -> PyResult<u64> {
    detached(py, || foldline_embed::count_tokens(text, model, format))
}

#[pyfunction]
#[pyo3(signature = (body, before=None, format=None))]
fn broken_laws(py: Python<'_>, body: &str, before: Option<&str>, format: Option<&str>) -> PyResult<Vec<String>> {
    detached(py, || foldline_embed::broken_laws(body, before, format))
}

#[pyfunction]
fn tool_declaration(py: Python<'_>, format: &str) -> PyResult<String> {
    detached(py, || foldline_embed::tool_declaration(format))
}

/// Applies a classic strategy. Returns for each message its index (none for a new one) and its JSON unless it is
/// unchanged, and the statistics as JSON.
#[pyfunction]
fn apply_strategy(py: Python<'_>, name: &str, messages: &str, options: &str) -> PyResult<(Vec<MessageFields>, String)> {
    let shortened = detached(py, || foldline_embed::apply_strategy(name, messages, options))?;
    Ok((shortened.messages.into_iter().map(message_fields).collect(), shortened.stats))
}

#[pyfunction]
#[pyo3(signature = (text, format=None))]
fn estimate_tokens(py: Python<'_>, text: &str, format: Option<&str>) -> PyResult<u64> {
    detached(py, || foldline_embed::estimate_tokens(text, format))
}

#[pyfunction]
fn compress_text(py: Python<'_>, text: &str, options: &str) -> PyResult<String> {
    detached(py, || foldline_embed::compress_text(text, options))
}

#[pyfunction]
fn replay(py: Python<'_>, paths: Vec<PathBuf>, options: &str) -> PyResult<String> {
    detached(py, || foldline_embed::replay_recordings(&paths, &ReplayOptions::from_json(options)?))
}

#[pyfunction]
fn replay_shard(py: Python<'_>, paths: Vec<PathBuf>, options: &str, shard: &str) -> PyResult<String> {
    detached(py, || foldline_embed::replay_shard(&paths, &ReplayOptions::from_json(options)?, shard))
}

#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "arguments from Python are owned")]
fn merge_replays(py: Python<'_>, results: Vec<String>) -> PyResult<String> {
    detached(py, || foldline_embed::merge_replays(&results))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<Session>()?;
    module.add_class::<Folded>()?;
    module.add("FoldlineError", FoldlineError::type_object(py))?;
    module.add("InvalidInput", InvalidInput::type_object(py))?;
    module.add("UnknownHandle", UnknownHandle::type_object(py))?;
    module.add("ArchiveError", ArchiveError::type_object(py))?;
    module.add("CannotFit", CannotFit::type_object(py))?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(fold, module)?)?;
    module.add_function(wrap_pyfunction!(count_tokens, module)?)?;
    module.add_function(wrap_pyfunction!(broken_laws, module)?)?;
    module.add_function(wrap_pyfunction!(tool_declaration, module)?)?;
    module.add_function(wrap_pyfunction!(apply_strategy, module)?)?;
    module.add_function(wrap_pyfunction!(estimate_tokens, module)?)?;
    module.add_function(wrap_pyfunction!(compress_text, module)?)?;
    module.add_function(wrap_pyfunction!(replay, module)?)?;
    module.add_function(wrap_pyfunction!(replay_shard, module)?)?;
    module.add_function(wrap_pyfunction!(merge_replays, module)?)?;
    Ok(())
}
