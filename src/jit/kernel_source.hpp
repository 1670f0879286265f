#pragma once
/// \file
/// What a kernel is made of: a template, the constants of its `Cfg`, and what host and device must
/// agree on. Plain data; the ops fill it.

#include <cstdint>
#include <string>
#include <vector>

namespace scanjit::jit {

/// One line of the generated `struct Cfg`.
struct Constant {
  enum class Type { kInt, kBool };
  std::string name;  ///< a C++ identifier
  Type type = Type::kInt;
  std::int64_t value = 0;  ///< kInt: fits in int; kBool: 0 or 1

  friend bool operator==(const Constant&, const Constant&) = default;
};

struct KernelSource {
  std::string template_file;  ///< "gated_delta_h/gated_delta_h.cu", a name of the template store
  std::string
      entry;  ///< extern "C" name, and the device function scanjit::dev::<entry><Cfg>(params)
  std::string traits;  ///< template scanjit::dev::<traits><Cfg> with `kSmemBytes` and `kThreads`
  std::string params_type;  ///< qualified name of the parameter struct:
                            ///< "scanjit::gated_delta_h::ScanParams"
  std::vector<Constant> constants;
  int threads = 0;     ///< of a block; asserted against kThreads
  int min_blocks = 1;  ///< second launch bound; 1 says nothing
  int smem_bytes = 0;  ///< dynamic shared memory; asserted against kSmemBytes

  friend bool operator==(const KernelSource&, const KernelSource&) = default;
};

}  // namespace scanjit::jit
