#include "tensor_problem.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "core/checked_math.hpp"
#include "host_memory.hpp"

namespace scanjit::cli {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 40;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape)
    text += (text.size() > 1 ? "," : "") + std::to_string(extent);
  return text + "]";
}

Status check_shape(const io::TensorView& tensor, const std::vector<std::int64_t>& wanted,
                   const char* symbols) {
  if (tensor.shape == wanted) return {};
  return invalid_argument(tensor.name + " has shape " + shape_text(tensor.shape) + ", it must be " +
                          symbols + " = " + shape_text(wanted));
}

Status check_rank(const io::TensorView& tensor, std::size_t rank, const char* symbols) {
  if (tensor.shape.size() == rank) return {};
  return invalid_argument(tensor.name + " has shape " + shape_text(tensor.shape) + ", it must be " +
                          symbols);
}

Status check_type(const io::TensorView& tensor, io::TensorType wanted) {
  if (tensor.type == wanted) return {};
  return invalid_argument(tensor.name + " has dtype " + io::to_string(tensor.type) +
                          ", it must be " + io::to_string(wanted));
}

std::int64_t product_of(const std::vector<std::int64_t>& shape, std::size_t count) {
  std::int64_t product = 1;
  for (std::size_t i = 0; i < count; ++i)
    product *= shape[i];  // at most the elements of a tensor in memory
  return product;
}

template <class T>
T nan_bits() {
  if constexpr (sizeof(T) == 2) {
    return static_cast<T>(0xFFFF);  // a NaN in bf16 and in f16
  } else {
    return std::numeric_limits<T>::quiet_NaN();
  }
}

// `rows` rows of `row` elements, each at a multiple of `stride`; what lies between is NaN. No
// tensor: all NaN.
template <class T>
std::vector<T> spread(const io::TensorView* tensor, std::int64_t rows, std::int64_t row,
                      std::int64_t stride) {
  std::vector<T> to(static_cast<std::size_t>(rows * stride), nan_bits<T>());
  if (tensor == nullptr || row == 0) return to;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(to.data() + r * stride,
                tensor->data.data() + static_cast<std::size_t>(r * row) * sizeof(T),
                static_cast<std::size_t>(row) * sizeof(T));
  }
  return to;
}

template <class T>
std::vector<std::byte> gather(const std::vector<T>& from, std::int64_t rows, std::int64_t row,
                              std::int64_t stride) {
  std::vector<std::byte> to(static_cast<std::size_t>(rows * row) * sizeof(T));
  for (std::int64_t r = 0; r < rows && row > 0; ++r) {
    std::memcpy(to.data() + static_cast<std::size_t>(r * row) * sizeof(T), from.data() + r * stride,
                static_cast<std::size_t>(row) * sizeof(T));
  }
  return to;
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Result<std::vector<std::int64_t>> read_indices(const io::TensorView& tensor, std::int64_t count,
                                               IndexType* type) {
  SCANJIT_TRY(check_shape(tensor, {count}, tensor.name == "cu_seqlens" ? "[N+1]" : "[N]"));
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  if (tensor.type == io::TensorType::kI64) {
    *type = IndexType::kInt64;
    if (count != 0) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  } else if (tensor.type == io::TensorType::kI32) {
    *type = IndexType::kInt32;
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::int32_t value = 0;
      std::memcpy(&value, tensor.data.data() + i * sizeof value, sizeof value);
      values[i] = value;
    }
  } else {
    return invalid_argument(tensor.name + " has dtype " + io::to_string(tensor.type) +
                            ", it must be I32 or I64");
  }
  return values;
}

// What --set said beyond the problem's own fields.
struct Settings {
  std::optional<std::int64_t> chunk_capacity, ht_slots;
};

Status apply(const NameValues& settings, TensorProblem* target, Settings* more) {
  GatedDeltaHProblem& p = target->inputs.problem;
  for (const auto& [name, value] : settings) {
    const auto count = [&, &n = name, &v = value](std::int64_t low) {
      return parse_integer(n, v, low, kMost);
    };
    if (name == "BT") {
      SCANJIT_ASSIGN_OR_RETURN(p.BT, count(1));
    } else if (name == "max_tokens") {
      SCANJIT_ASSIGN_OR_RETURN(p.max_tokens, count(0));
    } else if (name == "chunk_capacity") {
      SCANJIT_ASSIGN_OR_RETURN(more->chunk_capacity, count(0));
    } else if (name == "ht_slots") {
      SCANJIT_ASSIGN_OR_RETURN(more->ht_slots, count(1));
    } else if (name == "gate_base") {
      if (value != "2" && value != "e")
        return invalid_argument("gate_base is '" + value + "', it must be 2 or e");
      p.gate_base = value == "2" ? GateBase::kTwo : GateBase::kE;
    } else if (name == "layout") {
      if (value != "kv" && value != "vk")
        return invalid_argument("layout is '" + value + "', it must be kv or vk");
      p.layout = value == "kv" ? StateLayout::kKV : StateLayout::kVK;
    } else if (name == "aligned") {
      SCANJIT_ASSIGN_OR_RETURN(p.aligned16, parse_bool(name, value));
      target->misalign_elements = p.aligned16 ? 0 : 1;
    } else if (name == "host_lengths") {
      SCANJIT_ASSIGN_OR_RETURN(target->host_cu_seqlens, parse_bool(name, value));
    } else if (name == "numerics") {
      p.numerics = value;
    } else if (name == "in_place") {
      for (const std::string& word : split(value, '+')) {
        if (word != "ht" && word != "v_new") {
          return invalid_argument("in_place is '" + value + "', it must be ht, v_new or ht+v_new");
        }
        (word == "ht" ? target->ht_in_place : target->v_new_in_place) = true;
      }
    } else if (name.starts_with("stride.")) {
      const std::string tensor = name.substr(7);
      std::int64_t* stride = tensor == "k"       ? &p.k_stride
                             : tensor == "w"     ? &p.w_stride
                             : tensor == "u"     ? &p.u_stride
                             : tensor == "g"     ? &p.g_stride
                             : tensor == "gk"    ? &p.gk_stride
                             : tensor == "v_new" ? &p.v_new_stride
                             : tensor == "h0"    ? &p.h0_slot_stride
                             : tensor == "ht"    ? &p.ht_slot_stride
                                                 : nullptr;
      if (stride == nullptr) {
        return invalid_argument("'" + name +
                                "': strides are those of k, w, u, g, gk, v_new, h0 and ht");
      }
      SCANJIT_ASSIGN_OR_RETURN(*stride, count(1));
    } else {
      return invalid_argument(
          "'" + name +
          "' cannot be set: there are BT, gate_base, layout, max_tokens, aligned, stride.NAME, "
          "chunk_capacity, ht_slots, in_place, host_lengths and numerics");
    }
  }
  return {};
}

// Chunks that the sequences have, or nothing if their bounds are bad.
std::optional<std::int64_t> count_chunks(const std::vector<std::int64_t>& cu_seqlens,
                                         std::int64_t T, std::int64_t BT) {
  std::int64_t chunks = 0;
  for (std::size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    if (cu_seqlens[n] < 0 || cu_seqlens[n + 1] < cu_seqlens[n] || cu_seqlens[n + 1] > T)
      return std::nullopt;
    chunks += (cu_seqlens[n + 1] - cu_seqlens[n] + BT - 1) / BT;
  }
  return chunks;
}

// The shapes of k, w and u, and which inputs exist.
Status read_shapes(const io::Safetensors& file, GatedDeltaHProblem* p) {
  for (const char* name : {"k", "w", "u"}) {
    if (file.find(name) == nullptr)
      return invalid_argument(std::string("the file has no tensor ") + name);
  }
  const io::TensorView &k = *file.find("k"), &w = *file.find("w"), &u = *file.find("u");
  SCANJIT_TRY(check_rank(k, 4, "[B,T,H,K]"));
  SCANJIT_TRY(check_rank(w, 4, "[B,T,HV,K]"));
  SCANJIT_TRY(check_rank(u, 4, "[B,T,HV,V]"));
  if (k.type != io::TensorType::kBf16 && k.type != io::TensorType::kF16) {
    return invalid_argument(std::string("k has dtype ") + io::to_string(k.type) +
                            ", it must be BF16 or F16");
  }
  p->dtype = k.type == io::TensorType::kBf16 ? DType::kBf16 : DType::kF16;
  p->B = k.shape[0];
  p->T = k.shape[1];
  p->H = k.shape[2];
  p->K = k.shape[3];
  p->HV = w.shape[2];
  p->V = u.shape[3];
  SCANJIT_TRY(check_shape(w, {p->B, p->T, p->HV, p->K}, "[B,T,HV,K]"));
  SCANJIT_TRY(check_shape(u, {p->B, p->T, p->HV, p->V}, "[B,T,HV,V]"));
  SCANJIT_TRY(check_type(w, k.type));
  SCANJIT_TRY(check_type(u, k.type));
  if (const io::TensorView* g = file.find("g")) {
    SCANJIT_TRY(check_type(*g, io::TensorType::kF32));
    SCANJIT_TRY(check_shape(*g, {p->B, p->T, p->HV}, "[B,T,HV]"));
    p->has_g = true;
  }
  if (const io::TensorView* gk = file.find("gk")) {
    SCANJIT_TRY(check_type(*gk, io::TensorType::kF32));
    SCANJIT_TRY(check_shape(*gk, {p->B, p->T, p->HV, p->K}, "[B,T,HV,K]"));
    p->has_gk = true;
  }
  return {};
}

// Lengths and indices.
Status read_index_tensors(const io::Safetensors& file, TensorProblem* target) {
  GatedDeltaHProblem& p = target->inputs.problem;
  reference::GatedDeltaHInputs& inputs = target->inputs;
  if (const io::TensorView* cu = file.find("cu_seqlens")) {
    if (cu->shape.size() != 1 || cu->shape[0] < 1) {
      return invalid_argument("cu_seqlens has shape " + shape_text(cu->shape) +
                              ", it must be [N+1]");
    }
    if (p.B != 1)
      return invalid_argument("k has B = " + std::to_string(p.B) +
                              ", with cu_seqlens it must be 1");
    p.packed = true;
    p.sequences = cu->shape[0] - 1;
    SCANJIT_ASSIGN_OR_RETURN(inputs.cu_seqlens,
                             read_indices(*cu, p.sequences + 1, &p.cu_seqlens_type));
  }
  const std::int64_t N = p.packed ? p.sequences : p.B;
  if (const io::TensorView* offsets = file.find("chunk_offsets")) {
    if (!p.packed) return invalid_argument("chunk_offsets is given without cu_seqlens");
    IndexType type = p.cu_seqlens_type;
    SCANJIT_ASSIGN_OR_RETURN(inputs.chunk_offsets, read_indices(*offsets, N, &type));
    if (type != p.cu_seqlens_type)
      return invalid_argument("chunk_offsets and cu_seqlens must have one dtype");
    p.has_chunk_offsets = true;
  }
  std::optional<IndexType> index_type;
  for (const bool initial : {true, false}) {
    const io::TensorView* indices = file.find(initial ? "h0_indices" : "ht_indices");
    if (indices == nullptr) continue;
    IndexType type = IndexType::kInt64;
    SCANJIT_ASSIGN_OR_RETURN((initial ? inputs.h0_indices : inputs.ht_indices),
                             read_indices(*indices, N, &type));
    if (index_type && *index_type != type)
      return invalid_argument("h0_indices and ht_indices must have one dtype");
    index_type = type;
    (initial ? p.has_h0_indices : p.has_ht_indices) = true;
  }
  p.index_type = index_type.value_or(IndexType::kInt64);
  return {};
}

// A tensor of states, of any leading shape: how many states of HV heads it has.
Result<std::int64_t> read_states(const io::TensorView& tensor, const GatedDeltaHProblem& p,
                                 io::TensorType type) {
  SCANJIT_TRY(check_type(tensor, type));
  const bool kv = p.layout == StateLayout::kKV;
  const std::array<std::int64_t, 3> state = {p.HV, kv ? p.K : p.V, kv ? p.V : p.K};
  const std::size_t rank = tensor.shape.size();
  if (rank < 4 || !std::equal(state.begin(), state.end(), tensor.shape.end() - 3)) {
    return invalid_argument(tensor.name + " has shape " + shape_text(tensor.shape) +
                            ", it must end in " + (kv ? "[HV,K,V] = " : "[HV,V,K] = ") +
                            shape_text({state.begin(), state.end()}));
  }
  return product_of(tensor.shape, rank - 3);
}

// Which outputs are wanted, and the sizes of the state tensors.
Status choose_states(const io::Safetensors& file, const std::vector<std::string>& wanted,
                     const Settings& more, TensorProblem* target) {
  GatedDeltaHProblem& p = target->inputs.problem;
  const std::int64_t N = p.packed ? p.sequences : p.B;
  p.has_h = p.has_v_new = p.has_ht = wanted.empty();
  for (const std::string& name : wanted) {
    bool* has = name == "h"       ? &p.has_h
                : name == "v_new" ? &p.has_v_new
                : name == "ht"    ? &p.has_ht
                                  : nullptr;
    if (has != nullptr) {
      *has = true;
    } else if (name != "status") {
      return invalid_argument("'" + name +
                              "' is no output of gated_delta_h: there are h, v_new, ht and status");
    }
  }
  const auto one_per_sequence = [&](const char* name, std::int64_t states, bool pool) -> Status {
    if (pool || states == N) return {};
    return invalid_argument(std::string(name) + " holds " + std::to_string(states) +
                            " states, without " + name +
                            "_indices it must hold N = " + std::to_string(N));
  };
  if (const io::TensorView* h0 = file.find("h0")) {
    SCANJIT_ASSIGN_OR_RETURN(p.h0_slots, read_states(*h0, p, io::TensorType::kF32));
    SCANJIT_TRY(one_per_sequence("h0", p.h0_slots, p.has_h0_indices));
    p.has_h0 = true;
  } else if (p.has_h0_indices) {
    return invalid_argument("h0_indices is given without h0");
  }
  if (target->ht_in_place) {
    if (!p.has_h0) return invalid_argument("in_place=ht needs the tensor h0");
    if (file.find("ht") != nullptr)
      return invalid_argument("in_place=ht: ht is h0, the file must not hold another ht");
    p.has_ht = true;
    p.ht_slots = p.h0_slots;
    p.ht_slot_stride = p.h0_slot_stride;
    if (p.has_h0_indices && !p.has_ht_indices) {
      p.has_ht_indices = true;
      target->inputs.ht_indices = target->inputs.h0_indices;
    }
  } else if (const io::TensorView* ht = file.find("ht"); ht != nullptr && p.has_ht) {
    SCANJIT_ASSIGN_OR_RETURN(p.ht_slots, read_states(*ht, p, io::TensorType::kF32));
    SCANJIT_TRY(one_per_sequence("ht", p.ht_slots, p.has_ht_indices));
  } else {
    p.ht_slots = more.ht_slots.value_or(p.has_ht_indices && p.has_h0_indices ? p.h0_slots : N);
  }
  if (!p.has_ht && p.has_ht_indices) {
    p.has_ht_indices = false;
    target->inputs.ht_indices.clear();
  }
  if (target->v_new_in_place) {
    if (file.find("v_new") != nullptr) {
      return invalid_argument("in_place=v_new: v_new is u, the file must not hold another v_new");
    }
    p.has_v_new = true;
    p.v_new_stride = p.u_stride;
  }
  if (!p.packed) return {};
  if (const io::TensorView* h = file.find("h"); h != nullptr && p.has_h) {
    SCANJIT_ASSIGN_OR_RETURN(p.chunk_capacity, read_states(*h, p, file.find("k")->type));
  } else if (more.chunk_capacity) {
    p.chunk_capacity = *more.chunk_capacity;
  }
  return {};
}

}  // namespace

void TensorFile::add(std::string name, io::TensorType type, std::vector<std::int64_t> shape,
                     std::vector<std::byte> data) {
  bytes.push_back(std::move(data));
  io::TensorView view;
  view.name = std::move(name);
  view.type = type;
  view.shape = std::move(shape);
  view.data = bytes.back();  // a moved vector keeps its memory, also when `bytes` grows
  tensors.push_back(std::move(view));
}

Result<TensorProblem> read_problem(const io::Safetensors& file, const NameValues& settings,
                                   const std::vector<std::string>& wanted) {
  TensorProblem target;
  reference::GatedDeltaHInputs& inputs = target.inputs;
  GatedDeltaHProblem& p = inputs.problem;
  Settings more;
  SCANJIT_TRY(apply(settings, &target, &more));
  SCANJIT_TRY(read_shapes(file, &p));
  SCANJIT_TRY(read_index_tensors(file, &target));
  SCANJIT_TRY(choose_states(file, wanted, more, &target));
  SCANJIT_TRY(workspace_bound(p).status());
  SCANJIT_ASSIGN_OR_RETURN(const reference::GatedDeltaHSizes s, reference::sizes_of(p));
  SCANJIT_TRY(check_fits_host(p, HostUse::kRun));

  const io::TensorView* h = p.has_h ? file.find("h") : nullptr;
  if (h != nullptr && !p.packed) {
    SCANJIT_ASSIGN_OR_RETURN(const std::int64_t states, read_states(*h, p, file.find("k")->type));
    if (states != s.chunk_capacity) {
      return invalid_argument(
          "h holds " + std::to_string(states) +
          " states, it must hold B*ceil(T/BT) = " + std::to_string(s.chunk_capacity));
    }
  }
  const io::TensorView* v_new = p.has_v_new ? file.find("v_new") : nullptr;
  if (v_new != nullptr) {
    SCANJIT_TRY(check_type(*v_new, file.find("k")->type));
    SCANJIT_TRY(check_shape(*v_new, {p.B, p.T, p.HV, p.V}, "[B,T,HV,V]"));
  }

  const std::int64_t states = p.HV * s.state;
  inputs.k = spread<std::uint16_t>(file.find("k"), s.tokens, p.H * p.K, s.k_stride);
  inputs.w = spread<std::uint16_t>(file.find("w"), s.tokens, p.HV * p.K, s.w_stride);
  inputs.u = spread<std::uint16_t>(file.find("u"), s.tokens, p.HV * p.V, s.u_stride);
  if (p.has_g) inputs.g = spread<float>(file.find("g"), s.tokens, p.HV, s.g_stride);
  if (p.has_gk) inputs.gk = spread<float>(file.find("gk"), s.tokens, p.HV * p.K, s.gk_stride);
  if (p.has_h0) inputs.h0 = spread<float>(file.find("h0"), s.h0_slots, states, s.h0_slot_stride);
  if (p.has_h) target.h = spread<std::uint16_t>(h, s.chunk_capacity, states, states);
  if (target.v_new_in_place) {
    target.v_new = inputs.u;
  } else if (p.has_v_new) {
    target.v_new = spread<std::uint16_t>(v_new, s.tokens, p.HV * p.V, s.v_new_stride);
  }
  if (target.ht_in_place) {
    target.ht = inputs.h0;
  } else if (p.has_ht) {
    target.ht = spread<float>(file.find("ht"), s.ht_slots, states, s.ht_slot_stride);
  }
  return target;
}

TensorFile output_tensors(const TensorProblem& problem, const std::vector<std::string>& wanted,
                          std::uint32_t status) {
  TensorFile file;
  const GatedDeltaHProblem& p = problem.inputs.problem;
  const Result<reference::GatedDeltaHSizes> sizes = reference::sizes_of(p);
  if (!sizes.ok()) return file;  // `read_problem` has seen to it
  const auto type = p.dtype == DType::kBf16 ? io::TensorType::kBf16 : io::TensorType::kF16;
  const bool kv = p.layout == StateLayout::kKV;
  const std::int64_t rows = kv ? p.K : p.V, columns = kv ? p.V : p.K, states = p.HV * sizes->state;
  if (p.has_h) {
    // Room that no sequence can use is not written out, unless the caller asked for it by size.
    std::int64_t chunks = sizes->chunk_capacity;
    if (p.packed && p.chunk_capacity == 0 && !p.has_chunk_offsets) {
      chunks =
          std::min(chunks, count_chunks(problem.inputs.cu_seqlens, p.T, p.BT).value_or(chunks));
    }
    std::vector<std::int64_t> shape = {chunks, p.HV, rows, columns};
    if (!p.packed) {
      shape[0] = (p.T + p.BT - 1) / p.BT;
      shape.insert(shape.begin(), p.B);
    }
    file.add("h", type, shape, gather(problem.h, chunks, states, states));
  }
  if (p.has_v_new) {
    file.add("v_new", type, {p.B, p.T, p.HV, p.V},
             gather(problem.v_new, sizes->tokens, p.HV * p.V, sizes->v_new_stride));
  }
  if (p.has_ht) {
    file.add("ht", io::TensorType::kF32, {sizes->ht_slots, p.HV, rows, columns},
             gather(problem.ht, sizes->ht_slots, states, sizes->ht_slot_stride));
  }
  if (std::find(wanted.begin(), wanted.end(), "status") != wanted.end()) {
    file.add("status", io::TensorType::kU32, {1}, bytes_of(std::vector<std::uint32_t>{status}));
  }
  return file;
}

TensorFile input_tensors(const reference::GatedDeltaHInputs& inputs) {
  TensorFile file;
  const GatedDeltaHProblem& p = inputs.problem;
  const auto type = p.dtype == DType::kBf16 ? io::TensorType::kBf16 : io::TensorType::kF16;
  file.add("k", type, {p.B, p.T, p.H, p.K}, bytes_of(inputs.k));
  file.add("w", type, {p.B, p.T, p.HV, p.K}, bytes_of(inputs.w));
  file.add("u", type, {p.B, p.T, p.HV, p.V}, bytes_of(inputs.u));
  if (p.has_g) file.add("g", io::TensorType::kF32, {p.B, p.T, p.HV}, bytes_of(inputs.g));
  if (p.has_gk) file.add("gk", io::TensorType::kF32, {p.B, p.T, p.HV, p.K}, bytes_of(inputs.gk));
  if (p.has_h0) {
    const bool kv = p.layout == StateLayout::kKV;
    file.add("h0", io::TensorType::kF32,
             {p.packed ? p.sequences : p.B, p.HV, kv ? p.K : p.V, kv ? p.V : p.K},
             bytes_of(inputs.h0));
  }
  if (p.packed)
    file.add("cu_seqlens", io::TensorType::kI64, {p.sequences + 1}, bytes_of(inputs.cu_seqlens));
  return file;
}

}  // namespace scanjit::cli
