// ferrite._native: what Python may call. Arrays are checked here; every call that computes releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings_arrays.h"
#include "bindings_gguf.h"
#include "bindings_sampling.h"
#include "isa/dispatch.h"
#include "runtime/executor.h"
#include "runtime/limits.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrite {
namespace {

// Python's None arrives as a null pointer.
template <class T>
std::shared_ptr<T> given(std::shared_ptr<T> pointer) {
  if (pointer == nullptr) throw std::invalid_argument("an argument is None");
  return pointer;
}

std::vector<float> copy(const Floats& array) {
  return {array.data(), array.data() + array.size()};
}

template <class T>
nb::ndarray<nb::numpy, T> to_numpy(std::vector<T> values, std::vector<std::size_t> shape) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owned->data();
  nb::capsule owner(owned.release(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner);
}

const KernelTable& kernels_named(const std::string& name) {
  const KernelTable* table = isa::find(name);
  if (table == nullptr)
    throw std::invalid_argument("kernel provider '" + name + "' does not run on this machine");
  return *table;
}

Quantisation quantisation(bool residual) {
  return residual ? Quantisation::Q8Residual : Quantisation::Q8;
}

std::shared_ptr<Team> make_team(int threads) {
  if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be between 1 and 1024");
  return std::make_shared<Team>(threads);
}

std::shared_ptr<Weight> pack_weight(const Bytes& data, int32_t ggml_type, int64_t rows, int64_t cols,
                                    Team& team) {
  const auto file = span(data);
  nb::gil_scoped_release unlocked;
  return std::make_shared<Weight>(Weight::pack(file, ggml_type, rows, cols, team));
}

// Each matrix is its data, its GGUF type number, its rows and its columns. The data must lie in a mapped
// file, because its pages are dropped.
std::vector<std::shared_ptr<Weight>> pack_mapped(
    const std::vector<std::tuple<Bytes, int32_t, int64_t, int64_t>>& matrices, Team& team) {
  std::vector<FileMatrix> files;
  for (const auto& [data, ggml_type, rows, cols] : matrices)
    files.push_back({span(data), ggml_type, rows, cols});
  nb::gil_scoped_release unlocked;
  std::vector<std::shared_ptr<Weight>> packed;
  for (Weight& weight : Weight::pack(files, Source::MappedFile, team))
    packed.push_back(std::make_shared<Weight>(std::move(weight)));
  return packed;
}

StepInput step_input(const Ints& tokens, const Ints& positions, const Ints& sequences,
                     const std::vector<Ints>& tables, const Ints& logit_rows) {
  StepInput input = {span(tokens), span(positions), span(sequences), {}, span(logit_rows)};
  for (const Ints& table : tables) input.block_tables.push_back(span(table));
  return input;
}

// The draft of each logit row: the tokens of the `drafted` rows behind it. `rows` gets the logit rows with
// those of the drafts among them. No drafts at all when `drafted` is empty.
std::vector<std::span<const int32_t>> draft_rows(const StepInput& input, const std::vector<int32_t>& drafted,
                                                 std::vector<int32_t>& rows) {
  rows.assign(input.logit_rows.begin(), input.logit_rows.end());
  if (drafted.empty()) return {};
  if (drafted.size() != rows.size()) throw std::invalid_argument("step: one draft for each sampled row");
  std::vector<std::span<const int32_t>> drafts;
  rows.clear();
  for (std::size_t i = 0; i < drafted.size(); ++i) {
    const int64_t row = input.logit_rows[i], last = row + drafted[i];
    if (row < 0 || drafted[i] < 0 || last >= input.rows() ||
        input.sequences[static_cast<std::size_t>(row)] != input.sequences[static_cast<std::size_t>(last)])
      throw std::invalid_argument("step: a draft is not of the rows behind its own");
    drafts.push_back(
        input.tokens.subspan(static_cast<std::size_t>(row) + 1, static_cast<std::size_t>(drafted[i])));
    for (int64_t each = row; each <= last; ++each) rows.push_back(static_cast<int32_t>(each));
  }
  return drafts;
}

nb::ndarray<nb::numpy, int32_t> run_step(Executor& executor, const Ints& tokens, const Ints& positions,
                                         const Ints& sequences, const std::vector<Ints>& tables,
                                         const Ints& logit_rows, const std::vector<Sampler*>& samplers,
                                         const std::vector<std::pair<int32_t, Scorer*>>& scored,
                                         const std::vector<int32_t>& drafted) {
  for (const Sampler* sampler : samplers)
    if (sampler == nullptr) throw std::invalid_argument("step: a sampler is None");
  StepInput input = step_input(tokens, positions, sequences, tables, logit_rows);
  std::vector<int32_t> rows;
  const auto drafts = draft_rows(input, drafted, rows);
  std::vector<Scorer*> scorers;
  for (const auto& [first, scorer] : scored) {
    if (scorer == nullptr) throw std::invalid_argument("step: a scorer is None");
    if (first < 0 || static_cast<std::size_t>(first) >= tokens.size())
      throw std::invalid_argument("step: scored row out of range");
    scorers.push_back(scorer);
    for (std::size_t i = 0; i < scorer->size(); ++i) rows.push_back(first + static_cast<int32_t>(i));
  }
  input.logit_rows = rows;
  // Whoever waits for the GIL may take this thread's core with it: the others are at work by then.
  std::optional<nb::gil_scoped_release> unlocked;
  executor.step(input, [&] { unlocked.emplace(); });
  std::vector<int32_t> ids = executor.sample(samplers, scorers, drafts);
  unlocked.reset();
  const std::size_t count = ids.size();
  return to_numpy(std::move(ids), {count});
}

nb::ndarray<nb::numpy, float> run_logits(Executor& executor, const Ints& tokens, const Ints& positions,
                                         const Ints& sequences, const std::vector<Ints>& tables,
                                         const Ints& logit_rows) {
  const StepInput input = step_input(tokens, positions, sequences, tables, logit_rows);
  const auto vocab = static_cast<std::size_t>(executor.vocab_size());
  std::vector<float> logits;
  {
    nb::gil_scoped_release unlocked;
    executor.step(input);
    logits.reserve(input.logit_rows.size() * vocab);
    for (int64_t row = 0; row < input.logits(); ++row) {
      const auto values = executor.logits(row);
      logits.insert(logits.end(), values.begin(), values.end());
    }
  }
  return to_numpy(std::move(logits), {input.logit_rows.size(), vocab});
}

// rows x cols weights times float32 inputs by one kernel table: what the kernel tests compare.
nb::ndarray<nb::numpy, float> matmul(const Weight& weight,
                                     nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> x,
                                     const std::string& provider, bool residual) {
  if (static_cast<int64_t>(x.shape(1)) != weight.cols()) throw std::invalid_argument("matmul: width");
  const KernelTable& kernels = kernels_named(provider);
  const auto tokens = static_cast<int64_t>(x.shape(0));
  Buffer in(weight.cols(), RowSpace::Tokens,
            weight.type().quantised ? quantisation(residual) : Quantisation::None);
  Buffer out(weight.rows(), RowSpace::Tokens, Quantisation::None);
  in.reserve(tokens);
  out.reserve(tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    std::copy_n(x.data() + t * weight.cols(), weight.cols(), in.row(t));
    if (in.quantised()) kernels.quantize_row(in.row(t), in.cols(), in.quant_at(t, 0));
  }
  MatmulArgs args = {};
  args.tiles = weight.data();
  args.tile_bytes = weight.tile_bytes();
  args.tile_end = weight.tiles();
  args.cols = weight.cols();
  args.in = in.rows();
  args.tokens = tokens;
  args.out = out.row(0);
  args.out_stride = out.rows().stride;
  kernels.matmul[static_cast<std::size_t>(weight.type().type)](args);
  std::vector<float> result;
  for (int64_t t = 0; t < tokens; ++t) result.insert(result.end(), out.row(t), out.row(t) + weight.rows());
  return to_numpy(std::move(result),
                  {static_cast<std::size_t>(tokens), static_cast<std::size_t>(weight.rows())});
}

KvType kv_type(const std::string& name) {
  if (name == "f16") return KvType::F16;
  if (name == "f32") return KvType::F32;
  if (name == "q8_0") return KvType::Q8_0;
  throw std::invalid_argument("KV store: unknown type '" + name + "'");
}

KvBackend kv_backend(const std::string& name) {
  if (name == "vec") return KvBackend::Vec;
  if (name == "locus") return KvBackend::Locus;
  throw std::invalid_argument("KV store: unknown backend '" + name + "'");
}

void bind_kv_store(nb::module_& m) {
  m.def(
      "kv_block_bytes",
      [](int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t block_tokens, const std::string& dtype,
         const std::string& backend) {
        return KvShape{layers, kv_heads, head_dim, block_tokens, 1, kv_type(dtype), kv_backend(backend)}
            .block_bytes();
      },
      nb::kw_only(), "layers"_a, "kv_heads"_a, "head_dim"_a, "block_tokens"_a, "dtype"_a, "backend"_a);
  nb::class_<KvStore>(m, "KvStore")
      .def(nb::new_([](int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t block_tokens,
                       int64_t blocks, const std::string& dtype, const std::string& backend) {
             return std::make_shared<KvStore>(KvShape{layers, kv_heads, head_dim, block_tokens, blocks,
                                                      kv_type(dtype), kv_backend(backend)});
           }),
           nb::kw_only(), "layers"_a, "kv_heads"_a, "head_dim"_a, "block_tokens"_a, "blocks"_a, "dtype"_a,
           "backend"_a)
      .def_prop_ro("block_bytes", &KvStore::block_bytes)
      .def_prop_ro("run_blocks", [](const KvStore&) { return kInterleaved; })
      .def("copy_block", &KvStore::copy_block, "source"_a, "target"_a)
      .def(
          "return_blocks",
          [](KvStore& store, const Ints& blocks) {
            const auto ids = span(blocks);
            nb::gil_scoped_release unlocked;
            store.return_blocks(ids);
          },
          "blocks"_a);
}

void bind_executor(nb::module_& m) {
  const auto work = [](OpClass kind) {
    return [kind](const OpTimes& times) { return times.work[static_cast<std::size_t>(kind)]; };
  };
  nb::class_<OpTimes>(m, "OpTimes")
      .def_ro("steps", &OpTimes::steps)
      .def_ro("seconds", &OpTimes::seconds)
      .def_ro("span_seconds", &OpTimes::span_seconds)
      .def_prop_ro("linear", work(OpClass::Linear))
      .def_prop_ro("attention", work(OpClass::Attention))
      .def_prop_ro("norm", work(OpClass::Norm))
      .def_prop_ro("other", work(OpClass::Other))
      .def_ro("wait", &OpTimes::wait);

  nb::class_<Executor>(m, "Executor")
      .def(
          "__init__",
          [](Executor* self, std::shared_ptr<Team> team, const std::string& provider,
             std::shared_ptr<KvStore> kv, bool residual) {
            new (self) Executor(given(std::move(team)), kernels_named(provider), given(std::move(kv)),
                                quantisation(residual));
          },
          "team"_a, "provider"_a, "kv"_a, nb::kw_only(), "residual"_a = false)
      .def(
          "buffer",
          [](Executor& e, int64_t cols, bool logits) {
            return e.buffer(cols, logits ? RowSpace::Logits : RowSpace::Tokens);
          },
          "cols"_a, nb::kw_only(), "logits"_a = false)
      .def(
          "embed",
          [](Executor& e, std::shared_ptr<Weight> table, BufferId out, float scale) {
            e.embed(given(std::move(table)), out, scale);
          },
          "table"_a, "out"_a, "scale"_a)
      .def("select_rows", &Executor::select_rows, "source"_a, "out"_a)
      .def(
          "norm",
          [](Executor& e, BufferId in, const Floats& weight, BufferId out, float eps) {
            e.norm(in, copy(weight), out, eps);
          },
          "source"_a, "weight"_a, "out"_a, "eps"_a)
      .def(
          "linear",
          [](Executor& e, BufferId in, const std::vector<std::shared_ptr<Weight>>& weights,
             const std::vector<BufferId>& outs, const std::vector<Floats>& biases, bool accumulate) {
            if (weights.size() != outs.size() || biases.size() != outs.size())
              throw std::invalid_argument("linear: pieces differ in number");
            std::vector<LinearPiece> pieces;
            for (std::size_t i = 0; i < weights.size(); ++i)
              pieces.push_back({given(weights[i]), outs[i], copy(biases[i]), accumulate});
            e.linear(in, std::move(pieces));
          },
          "source"_a, "weights"_a, "outs"_a, "biases"_a, nb::kw_only(), "accumulate"_a)
      .def("angles", &Executor::angles, "frequencies"_a, "out"_a)
      .def(
          "rope",
          [](Executor& e, BufferId q, BufferId k, BufferId v, BufferId angles, int64_t heads,
             int64_t kv_heads, int64_t head_dim, int64_t layer, bool adjacent, float q_scale,
             const Floats& q_norm, const Floats& k_norm, float eps) {
            e.rope({q,
                    k,
                    v,
                    angles,
                    heads,
                    kv_heads,
                    head_dim,
                    layer,
                    adjacent ? RopeKind::Adjacent : RopeKind::Halves,
                    q_scale,
                    {copy(q_norm), eps},
                    {copy(k_norm), eps}});
          },
          nb::kw_only(), "q"_a, "k"_a, "v"_a, "angles"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "layer"_a,
          "adjacent"_a, "q_scale"_a, "q_norm"_a, "k_norm"_a, "eps"_a)
      .def(
          "attention",
          [](Executor& e, BufferId q, BufferId out, int64_t heads, int64_t kv_heads, int64_t head_dim,
             int64_t layer,
             int64_t window) { e.attention({q, out, heads, kv_heads, head_dim, layer, window}); },
          nb::kw_only(), "q"_a, "out"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "layer"_a, "window"_a)
      .def(
          "gate",
          [](Executor& e, const std::string& kind, BufferId gate, BufferId up) {
            if (kind != "silu" && kind != "gelu_tanh")
              throw std::invalid_argument("gate: unknown activation '" + kind + "'");
            e.gate(kind == "silu" ? GateKind::Silu : GateKind::GeluTanh, gate, up);
          },
          "kind"_a, "gate"_a, "up"_a)
      .def("add", &Executor::add, "y"_a, "x"_a)
      .def(
          "logits",
          [](Executor& e, BufferId in, std::shared_ptr<Weight> weight, BufferId out) {
            e.logits(in, given(std::move(weight)), out);
          },
          "source"_a, "weight"_a, "out"_a)
      .def_prop_ro("vocab_size", &Executor::vocab_size)
      .def_prop_ro("provider", [](const Executor& e) { return std::string(e.kernels().name); })
      .def("record_times", &Executor::record_times)
      .def("recorded_times", &Executor::recorded_times)
      .def("step", run_step, "tokens"_a, "positions"_a, "sequences"_a, "block_tables"_a, "logit_rows"_a,
           "samplers"_a, "scored"_a = nb::list(), "drafted"_a = nb::list())
      .def("evaluate", run_logits, "tokens"_a, "positions"_a, "sequences"_a, "block_tables"_a,
           "logit_rows"_a);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Ferrite's native core: weights, KV memory, the program executor and the sampler.";
  // What a program still holds when it ends is no leak.
  nb::set_leak_warnings(false);

  m.def("providers", [] {
    std::vector<std::string> names;
    for (const KernelTable* table : isa::available()) names.emplace_back(table->name);
    return names;
  });
  m.def("cpu_features", isa::cpu_features);
  m.def(
      "supports_type", [](int32_t ggml_type) { return quant::find_type(ggml_type) != nullptr; },
      "ggml_type"_a);
  m.def("matmul", matmul, "weight"_a, "x"_a, "provider"_a, nb::kw_only(), "residual"_a = false);

  nb::class_<Team>(m, "Team").def(nb::new_(&make_team), "threads"_a).def_prop_ro("size", &Team::size);

  nb::class_<MachineLimits>(m, "MachineLimits")
      .def(
          "__init__",
          [](MachineLimits* self, std::shared_ptr<Team> team) {
            new (self) MachineLimits(given(std::move(team)));
          },
          "team"_a)
      .def("read_bandwidth", &MachineLimits::read_bandwidth, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "multiply_adds",
          [](MachineLimits& limits, const std::string& provider) {
            const KernelTable& kernels = kernels_named(provider);
            nb::gil_scoped_release unlocked;
            return limits.multiply_adds(kernels);
          },
          "provider"_a);

  nb::class_<Weight>(m, "Weight")
      .def_static("pack", pack_weight, "data"_a, "ggml_type"_a, "rows"_a, "cols"_a, "team"_a)
      .def_static("pack_mapped", pack_mapped, "matrices"_a, "team"_a)
      .def_prop_ro("rows", &Weight::rows)
      .def_prop_ro("cols", &Weight::cols)
      .def_prop_ro("n_bytes", &Weight::bytes)
      .def(
          "row",
          [](const Weight& weight, int64_t row) {
            if (row < 0 || row >= weight.rows()) throw nb::index_error("row out of range");
            std::vector<float> out(static_cast<std::size_t>(weight.cols()));
            weight.read_row(row, out.data());
            const std::size_t cols = out.size();
            return to_numpy(std::move(out), {cols});
          },
          "row"_a);

  m.def("trim_memory", trim_memory);
  bind_gguf(m);
  bind_sampling(m);
  bind_kv_store(m);
  bind_executor(m);
}

}  // namespace ferrite
