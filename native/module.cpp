// distprof._kernel: the hot loops of distprof in C++17, against CPython's limited API (abi3).
//
// Optional, both when distprof is installed and when it runs: distprof/kernel.py decides when to
// use it, and everything here has a Python twin with the same results. See _kernel.pyi for the
// interface, and chunk.hpp, search.hpp and replay.hpp for the computation. This file only converts
// objects.
//
// No function here keeps a reference to an argument, and none holds the GIL while it computes.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <memory>
#include <new>
#include <optional>
#include <random>
#include <utility>

#include "chunk.hpp"
#include "replay.hpp"
#include "search.hpp"

namespace {

using distprof::Chunk;
using distprof::Settings;

// Objects -----------------------------------------------------------------------------------------

struct Release {
    void operator()(PyObject* object) const { Py_XDECREF(object); }
};

/// An owned reference.
using Object = std::unique_ptr<PyObject, Release>;

/// Thrown when a Python error is set.
struct PythonError {};

Object owned(PyObject* object) {
    if (object == nullptr) throw PythonError{};
    return Object(object);
}

/// Run a function that may throw. Returns nullptr, with a Python error set, if it does.
template <typename Function>
PyObject* guarded(Function function) {
    try {
        return function();
    } catch (const PythonError&) {
        return nullptr;
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    }
}

/// The bytes of an argument, for the duration of a call.
class Buffer {
public:
    explicit Buffer(PyObject* object, int flags = PyBUF_SIMPLE) {
        if (PyObject_GetBuffer(object, &view_, flags) != 0) throw PythonError{};
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { PyBuffer_Release(&view_); }

    const char* data() const { return static_cast<const char*>(view_.buf); }
    Py_ssize_t size() const { return view_.len; }

    template <typename Item>
    Item* items() const {
        return static_cast<Item*>(view_.buf);
    }
    template <typename Item>
    size_t count() const {
        return static_cast<size_t>(view_.len) / sizeof(Item);
    }

private:
    Py_buffer view_;
};

/// Other Python threads run while this lives.
class WithoutLock {
public:
    WithoutLock() : state_(PyEval_SaveThread()) {}
    WithoutLock(const WithoutLock&) = delete;
    WithoutLock& operator=(const WithoutLock&) = delete;
    ~WithoutLock() { PyEval_RestoreThread(state_); }

private:
    PyThreadState* state_;
};

// To Python ---------------------------------------------------------------------------------------

template <typename Number>
Object to_bytes(const std::vector<Number>& values) {
    const auto size = static_cast<Py_ssize_t>(values.size() * sizeof(Number));
    return owned(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(values.data()), size));
}

Object to_text(std::string_view text) {
    return owned(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr));
}

Object to_raw(std::string_view text) {
    return owned(PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

/// A JSON string as text, or unchanged if it contains escapes.
Object to_text_or_raw(std::string_view quoted) {
    const bool escaped = quoted.find('\\') != std::string_view::npos;
    return escaped ? to_raw(quoted) : to_text(quoted.substr(1, quoted.size() - 2));
}

/// JSON without the spaces between its parts.
Object to_compact_text(std::string_view json) {
    std::string compact;
    compact.reserve(json.size());
    bool is_quoted = false;
    for (size_t at = 0; at < json.size(); ++at) {
        const char byte = json[at];
        if (is_quoted && byte == '\\') compact.push_back(json[at++]);
        is_quoted ^= byte == '"';
        if (is_quoted || (byte != ' ' && byte != '\t' && byte != '\n' && byte != '\r'))
            compact.push_back(json[at]);
    }
    return to_text(compact);
}

template <typename Items, typename Convert>
Object to_list(const Items& items, Convert convert) {
    Object list = owned(PyList_New(static_cast<Py_ssize_t>(items.size())));
    Py_ssize_t place = 0;
    for (const auto& item : items) PyList_SetItem(list.get(), place++, convert(item).release());
    return list;
}

void put(const Object& dict, const char* key, const Object& value) {
    if (PyDict_SetItemString(dict.get(), key, value.get()) != 0) throw PythonError{};
}

Object new_dict() { return owned(PyDict_New()); }

Object to_dict(const distprof::DeviceColumns& columns) {
    Object dict = new_dict();
    put(dict, "start_ns", to_bytes(columns.start_ns));
    put(dict, "end_ns", to_bytes(columns.end_ns));
    put(dict, "name", to_bytes(columns.name));
    put(dict, "kind", to_bytes(columns.kind));
    put(dict, "stream", to_bytes(columns.stream));
    put(dict, "device", to_bytes(columns.device));
    put(dict, "correlation", to_bytes(columns.correlation));
    put(dict, "bytes", to_bytes(columns.bytes));
    put(dict, "blocks", to_bytes(columns.blocks));
    return dict;
}

Object to_dict(const distprof::HostColumns& columns) {
    Object dict = new_dict();
    put(dict, "start_ns", to_bytes(columns.start_ns));
    put(dict, "end_ns", to_bytes(columns.end_ns));
    put(dict, "name", to_bytes(columns.name));
    put(dict, "category", to_bytes(columns.category));
    put(dict, "thread", to_bytes(columns.thread));
    put(dict, "correlation", to_bytes(columns.correlation));
    put(dict, "sequence", to_bytes(columns.sequence));
    put(dict, "inputs", to_bytes(columns.inputs));
    return dict;
}

Object to_dict(const distprof::CommColumns& columns) {
    Object dict = new_dict();
    put(dict, "start_ns", to_bytes(columns.start_ns));
    put(dict, "end_ns", to_bytes(columns.end_ns));
    put(dict, "name", to_bytes(columns.name));
    put(dict, "category", to_bytes(columns.category));
    put(dict, "thread", to_bytes(columns.thread));
    put(dict, "stream", to_bytes(columns.stream));
    put(dict, "correlation", to_bytes(columns.correlation));
    put(dict, "integers", to_list(columns.integers, to_bytes<std::int64_t>));
    put(dict, "texts", to_list(columns.texts, to_bytes<std::int32_t>));
    return dict;
}

Object to_tuple(const distprof::ThreadName& name) {
    return owned(PyTuple_Pack(3, to_text(name.process).get(), to_text(name.thread).get(),
                              to_text_or_raw(name.name).get()));
}

/// The texts that are new in a dictionary, and the code of the first of them.
template <typename Convert>
Object to_new_texts(const distprof::Dictionary& texts, Convert convert) {
    const auto& all = texts.texts();
    const auto first = static_cast<std::ptrdiff_t>(texts.num_old());
    const std::vector<std::string_view> added(all.begin() + first, all.end());
    const Object code = owned(PyLong_FromSsize_t(first));
    return owned(PyTuple_Pack(2, code.get(), to_list(added, convert).get()));
}

/// The columns of a chunk, and the texts that are new in it.
Object to_dict(const Chunk& chunk, const distprof::Texts& texts) {
    const auto new_raw = [](const distprof::Dictionary& raw) { return to_new_texts(raw, to_raw); };
    Object dict = new_dict();
    put(dict, "num_events", owned(PyLong_FromLongLong(chunk.num_events)));
    put(dict, "num_clamped", owned(PyLong_FromLongLong(chunk.num_clamped)));
    put(dict, "names", to_new_texts(texts.names, to_text_or_raw));
    put(dict, "categories", to_new_texts(texts.categories, to_text));
    put(dict, "threads", to_new_texts(texts.threads, to_text));
    put(dict, "inputs", to_new_texts(texts.inputs, to_compact_text));
    put(dict, "raw_texts", to_list(texts.raw, new_raw));
    put(dict, "thread_names", to_list(chunk.thread_names, to_tuple));
    put(dict, "device", to_dict(chunk.device));
    put(dict, "host", to_dict(chunk.host));
    put(dict, "comm", to_dict(chunk.comm));
    return dict;
}

// From Python -------------------------------------------------------------------------------------

std::string text_of(PyObject* object) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text == nullptr) throw PythonError{};
    return std::string(text, static_cast<size_t>(size));
}

long long integer_of(PyObject* object) {
    const long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred() != nullptr) throw PythonError{};
    return value;
}

std::string bytes_of(PyObject* object) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(object, &data, &size) != 0) throw PythonError{};
    return std::string(data, static_cast<size_t>(size));
}

/// The first bytes of a buffer.
std::string_view text_in(const Buffer& buffer, Py_ssize_t stop) {
    if (stop < 0 || stop > buffer.size()) {
        PyErr_SetString(PyExc_ValueError, "stop is outside the data");
        throw PythonError{};
    }
    return std::string_view(buffer.data(), static_cast<size_t>(stop));
}

/// Calls `take` with each item of a tuple.
template <typename Take>
void each(PyObject* tuple, Take take) {
    const Py_ssize_t size = PyTuple_Size(tuple);
    if (size < 0) throw PythonError{};
    for (Py_ssize_t n = 0; n < size; ++n) take(PyTuple_GetItem(tuple, n));
}

std::vector<std::string> texts_of(PyObject* tuple) {
    std::vector<std::string> texts;
    each(tuple, [&](PyObject* item) { texts.push_back(text_of(item)); });
    return texts;
}

/// Columns from tuples of one or two numbers of arguments.
std::vector<distprof::CommColumn> comm_columns_of(PyObject* tuple, size_t num_arguments) {
    std::vector<distprof::CommColumn> columns;
    each(tuple, [&](PyObject* keys) {
        std::vector<size_t> numbers;
        each(keys, [&](PyObject* item) {
            const long long number = integer_of(item);
            if (number < 0 || static_cast<size_t>(number) >= num_arguments) {
                PyErr_SetString(PyExc_ValueError, "a column names an argument that is not listed");
                throw PythonError{};
            }
            numbers.push_back(static_cast<size_t>(number));
        });
        if (numbers.empty() || numbers.size() > 2) {
            PyErr_SetString(PyExc_ValueError, "a column has one or two keys");
            throw PythonError{};
        }
        columns.push_back({numbers.front(), numbers.back()});
    });
    return columns;
}

std::vector<std::pair<std::string, std::int8_t>> categories_of(PyObject* dict) {
    std::vector<std::pair<std::string, std::int8_t>> categories;
    PyObject* word = nullptr;
    PyObject* kind = nullptr;
    Py_ssize_t place = 0;
    while (PyDict_Next(dict, &place, &word, &kind) != 0)
        categories.emplace_back(text_of(word), static_cast<std::int8_t>(integer_of(kind)));
    return categories;
}

// class Decoder -----------------------------------------------------------------------------------

/// What a decoder keeps between the chunks of its trace.
struct Trace {
    explicit Trace(std::unique_ptr<const Settings> given) : settings(std::move(given)), reader(*settings) {}

    const std::unique_ptr<const Settings> settings;
    distprof::TraceReader reader;
    bool is_busy = false;
};

struct Decoder {
    PyObject_HEAD
    Trace* trace;
};

std::unique_ptr<const Settings> settings_from(PyObject* args, PyObject* keywords) {
    static const char* names[] = {"categories",     "module_prefix",  "step_prefix",
                                  "without_inputs", "comm_prefixes",  "skipped_phases",
                                  "arguments",      "comm_integers",  "comm_texts",
                                  "longest_ns",     "largest_ns",     "exact_below_us",
                                  nullptr};
    PyObject *categories, *module_prefix, *step_prefix, *without_inputs, *comm_prefixes, *phases;
    PyObject *arguments, *integers, *texts;
    long long longest_ns, largest_ns, exact_below_us;
    if (PyArg_ParseTupleAndKeywords(args, keywords, "O!UUO!O!UO!O!O!LLL", const_cast<char**>(names),
                                    &PyDict_Type, &categories, &module_prefix, &step_prefix,
                                    &PyTuple_Type, &without_inputs, &PyTuple_Type, &comm_prefixes,
                                    &phases, &PyTuple_Type, &arguments, &PyTuple_Type, &integers,
                                    &PyTuple_Type, &texts, &longest_ns, &largest_ns,
                                    &exact_below_us) == 0)
        throw PythonError{};
    static const std::uint64_t seed = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
    auto settings = std::make_unique<Settings>();
    settings->seed = seed;
    settings->categories = categories_of(categories);
    settings->module_prefix = text_of(module_prefix);
    settings->step_prefix = text_of(step_prefix);
    for (const std::string& name : texts_of(without_inputs)) settings->without_inputs.insert(name);
    settings->comm_prefixes = texts_of(comm_prefixes);
    settings->skipped_phases = text_of(phases);
    settings->arguments = texts_of(arguments);
    const size_t num_arguments = settings->arguments.size();
    if (num_arguments < distprof::NUM_ALWAYS || num_arguments >= distprof::MOST_ARGUMENTS) {
        PyErr_SetString(PyExc_ValueError, "too few or too many arguments");
        throw PythonError{};
    }
    settings->comm_integers = comm_columns_of(integers, num_arguments);
    settings->comm_texts = comm_columns_of(texts, num_arguments);
    settings->longest_ns = longest_ns;
    settings->largest_ns = largest_ns;
    settings->exact_below_us = exact_below_us;
    settings->index_arguments();
    return settings;
}

PyObject* decoder_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
    return guarded([&]() -> PyObject* {
        auto trace = std::make_unique<Trace>(settings_from(args, keywords));
        const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
        Object made = owned(allocate(type, 0));
        reinterpret_cast<Decoder*>(made.get())->trace = trace.release();
        return made.release();
    });
}

void decoder_dealloc(PyObject* self) {
    delete reinterpret_cast<Decoder*>(self)->trace;
    PyTypeObject* type = Py_TYPE(self);
    const auto free_object = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
    free_object(self);
    Py_DECREF(type);
}

/// Only one thread may use a trace at a time.
class Usage {
public:
    explicit Usage(Trace& trace) : trace_(trace) {
        if (trace.is_busy) {
            PyErr_SetString(PyExc_RuntimeError, "another thread uses this decoder");
            throw PythonError{};
        }
        trace.is_busy = true;
    }
    Usage(const Usage&) = delete;
    Usage& operator=(const Usage&) = delete;
    ~Usage() { trace_.is_busy = false; }

private:
    Trace& trace_;
};

/// The chunk's columns, or nullptr if it is declined. Runs without the GIL.
const Chunk* read_unlocked(Trace& trace, std::string_view text, bool exact, bool device_only) {
    const WithoutLock unlocked;
    try {
        return &trace.reader.read(text, exact, device_only);
    } catch (const distprof::Declined&) {
        return nullptr;
    }
}

PyObject* decoder_decode(PyObject* self, PyObject* args) {
    PyObject* data = nullptr;
    Py_ssize_t stop = 0;
    int exact = 0;
    int device_only = 0;
    if (PyArg_ParseTuple(args, "Onpp:decode", &data, &stop, &exact, &device_only) == 0) return nullptr;
    return guarded([&]() -> PyObject* {
        const Buffer buffer(data);
        const std::string_view text = text_in(buffer, stop);
        Trace& trace = *reinterpret_cast<Decoder*>(self)->trace;
        const Usage usage(trace);
        const Chunk* const chunk = read_unlocked(trace, text, exact != 0, device_only != 0);
        return chunk ? to_dict(*chunk, trace.reader.texts()).release() : Py_NewRef(Py_None);
    });
}

PyObject* decoder_forget(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        Trace& trace = *reinterpret_cast<Decoder*>(self)->trace;
        const Usage usage(trace);
        trace.reader.forget();
        return Py_NewRef(Py_None);
    });
}

PyMethodDef decoder_methods[] = {
    {"decode", decoder_decode, METH_VARARGS,
     "decode(data, stop, exact, device_only)\n--\n\nColumns of a chunk, None where it is declined."},
    {"forget", decoder_forget, METH_NOARGS, "forget()\n--\n\nAssign the codes of texts from 0 again."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot decoder_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(decoder_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(decoder_dealloc)},
    {Py_tp_methods, decoder_methods},
    {Py_tp_doc, const_cast<char*>("Reads the chunks of a Kineto trace, one after the other.")},
    {0, nullptr},
};

PyType_Spec decoder_spec = {
    "distprof._kernel.Decoder", sizeof(Decoder), 0, Py_TPFLAGS_DEFAULT, decoder_slots};

// select() ----------------------------------------------------------------------------------------

distprof::Found select_unlocked(const distprof::EventSearch& search) {
    const WithoutLock unlocked;
    return search.select();
}

/// The found events as a JSON array.
Object to_array(const distprof::EventSearch& search, const distprof::Found& found) {
    Object array = owned(PyBytes_FromStringAndSize(
        nullptr, static_cast<Py_ssize_t>(search.size_of(found))));
    char* const bytes = PyBytes_AsString(array.get());
    if (bytes == nullptr) throw PythonError{};
    const WithoutLock unlocked;  // no other code knows the array yet
    search.write(found, bytes);
    return array;
}

PyObject* select_events(PyObject*, PyObject* args) {
    PyObject *data, *edge, *category, *on_device, *step;
    Py_ssize_t stop, opening;
    if (PyArg_ParseTuple(args, "OnSnSO!S:select", &data, &stop, &edge, &opening, &category,
                         &PyTuple_Type, &on_device, &step) == 0)
        return nullptr;
    return guarded([&]() -> PyObject* {
        const Buffer buffer(data);
        const std::string_view text = text_in(buffer, stop);
        distprof::Search search;
        search.edge = bytes_of(edge);
        search.category = bytes_of(category);
        search.step = bytes_of(step);
        each(on_device, [&](PyObject* word) { search.on_device.push_back(bytes_of(word)); });
        const bool is_edge = opening > 0 && static_cast<size_t>(opening) < search.edge.size();
        bool is_given = is_edge && !search.category.empty() && !search.step.empty();
        for (const std::string& word : search.on_device) is_given = is_given && !word.empty();
        if (!is_given) {
            PyErr_SetString(PyExc_ValueError, "there is nothing to look for");
            throw PythonError{};
        }
        search.opening = static_cast<size_t>(opening);
        const distprof::EventSearch events(text, search);
        const distprof::Found found = select_unlocked(events);
        const Object array = to_array(events, found);
        const Object count = owned(PyLong_FromSize_t(found.num_device_rows));
        return owned(PyTuple_Pack(2, array.get(), count.get())).release();
    });
}

// holds_any() -------------------------------------------------------------------------------------

PyObject* holds_any(PyObject*, PyObject* args) {
    PyObject *data, *words;
    Py_ssize_t stop;
    if (PyArg_ParseTuple(args, "OnO!:holds_any", &data, &stop, &PyTuple_Type, &words) == 0)
        return nullptr;
    return guarded([&]() -> PyObject* {
        const Buffer buffer(data);
        const std::string_view text = text_in(buffer, stop);
        std::vector<std::string> wanted;
        each(words, [&](PyObject* word) { wanted.push_back(bytes_of(word)); });
        for (const std::string& word : wanted) {
            if (word.empty()) {
                PyErr_SetString(PyExc_ValueError, "there is nothing to look for");
                throw PythonError{};
            }
        }
        bool found = false;
        {
            const WithoutLock unlocked;
            for (const std::string& word : wanted)
                found = found || distprof::Needle(word).find_in(text, 0) != std::string_view::npos;
        }
        return PyBool_FromLong(found);
    });
}

// The module --------------------------------------------------------------------------------------

int add_types(PyObject* module) {
    PyObject* type = PyType_FromModuleAndSpec(module, &decoder_spec, nullptr);
    if (type == nullptr) return -1;
    const int added = PyModule_AddObjectRef(module, "Decoder", type);
    Py_DECREF(type);
    return added;
}

// simulate() and depths() -------------------------------------------------------------------------

void require_that(bool is_so, const char* otherwise) {
    if (is_so) return;
    PyErr_SetString(PyExc_ValueError, otherwise);
    throw PythonError{};
}

/// Edges whose ends are operations of the graph.
distprof::Edges edges_of(const Buffer& source, const Buffer& target, size_t num_operations) {
    const distprof::Edges edges{source.items<std::int64_t>(), target.items<std::int64_t>(),
                                source.count<std::int64_t>()};
    require_that(edges.size == target.count<std::int64_t>() &&
                     distprof::are_below(edges.source, edges.size, num_operations) &&
                     distprof::are_below(edges.target, edges.size, num_operations),
                 "an edge names an operation outside the graph");
    return edges;
}

/// An argument that may be None, as rows of one value or of `width`.
template <typename Time>
distprof::Rows<Time> rows_of(const std::optional<Buffer>& buffer, size_t num_rows, size_t width) {
    if (!buffer) return {nullptr, 1};
    const size_t count = buffer->count<Time>();
    require_that(count == num_rows || count == num_rows * width, "rows of an unexpected length");
    return {buffer->items<Time>(), count == num_rows ? 1 : width};
}

template <typename Time>
void simulate_with(PyObject* const* given, size_t num_operations, size_t width) {
    const Buffer source(given[0]), target(given[1]), number(given[2]);
    const distprof::Edges edges = edges_of(source, target, num_operations);
    require_that(number.count<std::int64_t>() == edges.size &&
                     distprof::are_below(number.items<std::int64_t>(), edges.size, edges.size),
                 "an edge has no number");
    std::optional<Buffer> duration(std::in_place, given[3]), delay;
    if (given[4] != Py_None) delay.emplace(given[4]);
    const Buffer start(given[5], PyBUF_WRITABLE), end(given[6], PyBUF_WRITABLE);
    require_that(start.count<Time>() == num_operations * width &&
                     end.count<Time>() == num_operations * width,
                 "results of an unexpected length");
    const auto durations = rows_of<Time>(duration, num_operations, width);
    const auto delays = rows_of<Time>(delay, edges.size, width);
    const WithoutLock unlocked;
    distprof::simulate(edges, number.items<std::int64_t>(), width, durations, delays,
                       start.items<Time>(), end.items<Time>());
}

PyObject* simulate_graph(PyObject*, PyObject* args) {
    PyObject* given[7];
    Py_ssize_t num_operations, width;
    int is_float = 0;
    if (PyArg_ParseTuple(args, "nnpOOOOOOO:simulate", &num_operations, &width, &is_float, &given[0],
                         &given[1], &given[2], &given[3], &given[4], &given[5], &given[6]) == 0)
        return nullptr;
    return guarded([&]() -> PyObject* {
        require_that(num_operations >= 0 && width >= 1, "a graph of an impossible size");
        const auto operations = static_cast<size_t>(num_operations);
        const auto columns = static_cast<size_t>(width);
        if (is_float != 0)
            simulate_with<double>(given, operations, columns);
        else
            simulate_with<std::int64_t>(given, operations, columns);
        return Py_NewRef(Py_None);
    });
}

PyObject* graph_depths(PyObject*, PyObject* args) {
    PyObject *sources, *targets;
    Py_ssize_t num_operations;
    if (PyArg_ParseTuple(args, "nOO:depths", &num_operations, &sources, &targets) == 0) return nullptr;
    return guarded([&]() -> PyObject* {
        require_that(num_operations >= 0, "a graph of an impossible size");
        const Buffer source(sources), target(targets);
        const auto operations = static_cast<size_t>(num_operations);
        const distprof::Edges edges = edges_of(source, target, operations);
        const distprof::Depths found = [&] {
            const WithoutLock unlocked;
            return distprof::depths(operations, edges);
        }();
        const Object depth = to_bytes(found.depth);
        const Object waiting_for = to_bytes(found.waiting_for);
        return owned(PyTuple_Pack(2, depth.get(), waiting_for.get())).release();
    });
}

PyMethodDef module_functions[] = {
    {"simulate", simulate_graph, METH_VARARGS,
     "simulate(num_operations, width, is_float, source, target, edge, duration, delay, start, end)"
     "\n--\n\nMove start and end to when operations of a graph start and end."},
    {"depths", graph_depths, METH_VARARGS,
     "depths(num_operations, source, target)\n--\n\n"
     "Depth of each operation, and for how many others it waits in the end."},
    {"select", select_events, METH_VARARGS,
     "select(data, stop, edge, opening, category, on_device, step)\n--\n\n"
     "Device rows and step marks as a JSON array, and the number of device rows."},
    {"holds_any", holds_any, METH_VARARGS,
     "holds_any(data, stop, words)\n--\n\nWhether one of the words stands in the data."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(add_types)},
    {0, nullptr},
};

PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    "_kernel",
    "The hot loops of distprof; see distprof/kernel.py.",
    0,
    module_functions,
    module_slots,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__kernel() { return PyModuleDef_Init(&module_definition); }
