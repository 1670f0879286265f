#pragma once
/// \file
/// The gated-delta state scan of a safetensors file: which problem its tensors pose, and the
/// tensors laid out as the kernel takes them. Needs no GPU. Trusts nothing in the file.
///
/// Tensors are named as in docs/kernels/gated_delta_h.md; one that is absent is an optional one
/// left out. `h`, `v_new` and `ht` in the file are what those outputs hold before the call. The
/// problem is packed when `cu_seqlens` is there.

#include <cstdint>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "name_values.hpp"
#include "reference/gated_delta_h.hpp"
#include "scanjit/result.hpp"

namespace scanjit::cli {

/// A problem with its inputs, and its outputs as they are before (or after) a call, all in the
/// layout of `reference::GatedDeltaHSizes`.
struct TensorProblem {
  reference::GatedDeltaHInputs inputs;  ///< with the problem
  std::vector<std::uint16_t> h, v_new;
  std::vector<float> ht;
  bool ht_in_place = false;     ///< ht is the memory of h0
  bool v_new_in_place = false;  ///< v_new is the memory of u
  bool host_cu_seqlens = false;
  int misalign_elements = 0;  ///< every tensor starts so many elements past a 16-byte boundary
};

/// `settings` (--set), all optional:
///   BT=64             tokens of a chunk
///   gate_base=2|e     units of g and gk
///   layout=kv|vk      how h0, h and ht are stored
///   max_tokens=N      upper bound of the longest sequence
///   aligned=true|false  false: every tensor starts one element past a 16-byte boundary
///   stride.NAME=N     token stride of k, w, u, g, gk, v_new; distance between the states of h0, ht
///   chunk_capacity=N  chunks that h has room for (packed)
///   ht_slots=N        size of the pool ht, where the file has no ht
///   in_place=ht+v_new write ht over h0, v_new over u
///   host_lengths=true give the launch the host's copy of cu_seqlens
///   numerics=default|any
/// `wanted` (--want): the outputs to compute; empty: h, v_new and ht.
/// Outputs that the file does not hold start as NaN, as does every element between strided rows.
/// Errors: kInvalidArgument; the sentence names tensor, value and bound. kOutOfMemory before
/// anything is laid out, if strides or pools ask for more than this machine has.
[[nodiscard]] Result<TensorProblem> read_problem(const io::Safetensors& file,
                                                 const NameValues& settings,
                                                 const std::vector<std::string>& wanted);

/// A file's content: tensors with the bytes that they refer to.
struct TensorFile {
  std::vector<io::TensorView> tensors;
  std::vector<std::vector<std::byte>> bytes;
  void add(std::string name, io::TensorType type, std::vector<std::int64_t> shape,
           std::vector<std::byte> data);
};

/// The outputs as tensors of the file's shapes, without strides; "status" too if it is wanted.
[[nodiscard]] TensorFile output_tensors(const TensorProblem& problem,
                                        const std::vector<std::string>& wanted,
                                        std::uint32_t status);
/// The inputs of contiguous `inputs` as a file that `read_problem` reads back.
[[nodiscard]] TensorFile input_tensors(const reference::GatedDeltaHInputs& inputs);

}  // namespace scanjit::cli
