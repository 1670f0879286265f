// The problem that a file's tensors pose.
#include <cmath>
#include <cstring>

#include "cli_world.hpp"
#include "reference/generators.hpp"
#include "tensor_problem.hpp"

namespace scanjit::test {
namespace {

using namespace cli;

GatedDeltaHProblem small() {
  GatedDeltaHProblem p;
  p.B = 2;
  p.T = 37;
  p.H = 2;
  p.HV = 4;
  p.K = 16;
  p.V = 24;
  p.BT = 16;
  p.has_g = p.has_h0 = p.has_ht = true;
  return p;
}

reference::GatedDeltaHInputs inputs_of(const GatedDeltaHProblem& problem) {
  reference::GeneratorOptions options;
  options.seed = 5;
  auto inputs = reference::generate(problem, options);
  REQUIRE(inputs.ok());
  return std::move(*inputs);
}

// A file in memory that tests may bend before it is read.
struct File {
  TensorFile tensors;
  explicit File(const reference::GatedDeltaHInputs& inputs) : tensors(input_tensors(inputs)) {}

  io::TensorView& at(const std::string& name) {
    for (io::TensorView& tensor : tensors.tensors) {
      if (tensor.name == name) return tensor;
    }
    FAIL("no tensor " << name);
    return tensors.tensors.front();
  }
  void remove(const std::string& name) {
    std::erase_if(tensors.tensors,
                  [&](const io::TensorView& tensor) { return tensor.name == name; });
  }
  void add_indices(const std::string& name, const std::vector<std::int32_t>& values) {
    std::vector<std::byte> bytes(values.size() * 4);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    tensors.add(name, io::TensorType::kI32, {static_cast<std::int64_t>(values.size())},
                std::move(bytes));
  }
  Result<TensorProblem> read(const std::string& settings = "BT=16",
                             const std::vector<std::string>& wanted = {}) const {
    TemporaryDirectory folder;
    const std::string path = folder.file("x.safetensors");
    REQUIRE(io::write_safetensors(path, tensors.tensors).ok());
    const auto file = io::Safetensors::read(path);
    REQUIRE(file.ok());
    const auto values =
        settings.empty() ? Result<NameValues>(NameValues()) : parse_name_values(settings);
    REQUIRE(values.ok());
    return read_problem(*file, *values, wanted);
  }
};

void refused(const Result<TensorProblem>& result, const std::string& words) {
  REQUIRE_FALSE(result.ok());
  INFO(result.status().message());
  CHECK(result.status().code() == ErrorCode::kInvalidArgument);
  CHECK(result.status().message().find(words) != std::string::npos);
}

TEST_CASE("a written example poses the problem that it was made of", "[cli]") {
  const auto inputs = inputs_of(small());
  const auto read = File(inputs).read();
  REQUIRE(read.ok());
  const GatedDeltaHProblem& p = read->inputs.problem;
  CHECK(p.B == 2);
  CHECK(p.T == 37);
  CHECK(p.H == 2);
  CHECK(p.HV == 4);
  CHECK(p.K == 16);
  CHECK(p.V == 24);
  CHECK(p.has_g);
  CHECK_FALSE(p.has_gk);
  CHECK(p.has_h0);
  CHECK((p.has_h && p.has_v_new && p.has_ht));
  CHECK_FALSE(p.packed);
  CHECK(read->inputs.k == inputs.k);
  CHECK(read->inputs.g == inputs.g);
  CHECK(read->inputs.h0 == inputs.h0);
  CHECK(read->h.size() == static_cast<std::size_t>(2 * 3 * 4 * 16 * 24));
  CHECK(read->h[0] == 0xFFFF);
  CHECK(std::isnan(read->ht[0]));
}

TEST_CASE("a token stride spreads rows and leaves NaN between them", "[cli]") {
  const auto inputs = inputs_of(small());
  const auto read = File(inputs).read("BT=16,stride.k=50,stride.v_new=100,stride.h0=2000");
  REQUIRE(read.ok());
  const std::int64_t row = 2 * 16;
  REQUIRE(read->inputs.k.size() == static_cast<std::size_t>(2 * 37 * 50));
  for (std::int64_t t = 0; t < 2 * 37; ++t) {
    for (std::int64_t i = 0; i < 50; ++i) {
      const std::uint16_t wanted =
          i < row ? inputs.k[static_cast<std::size_t>(t * row + i)] : 0xFFFF;
      REQUIRE(read->inputs.k[static_cast<std::size_t>(t * 50 + i)] == wanted);
    }
  }
  // Out again: without the stride, in the shape of the definition.
  TensorProblem done = *read;
  for (std::size_t i = 0; i < done.v_new.size(); ++i)
    done.v_new[i] = static_cast<std::uint16_t>(i / 100 * 96 + i % 100);
  const TensorFile out = output_tensors(done, {}, 0);
  const io::TensorView* v_new = nullptr;
  for (const io::TensorView& tensor : out.tensors) {
    if (tensor.name == "v_new") v_new = &tensor;
  }
  REQUIRE(v_new != nullptr);
  CHECK(v_new->shape == std::vector<std::int64_t>{2, 37, 4, 24});
  for (std::size_t i = 0; i < 2 * 37 * 96; ++i) {
    std::uint16_t value = 0;
    std::memcpy(&value, v_new->data.data() + 2 * i, 2);
    REQUIRE(value == static_cast<std::uint16_t>(i));
  }
}

TEST_CASE("outputs are those that are wanted, and start from the file's content", "[cli]") {
  File file(inputs_of(small()));
  std::vector<std::byte> content(2 * 4 * 16 * 24 * 4, std::byte{0x3F});
  file.tensors.add("ht", io::TensorType::kF32, {2, 4, 16, 24}, content);
  const auto read = file.read("BT=16", {"ht"});
  REQUIRE(read.ok());
  CHECK_FALSE(read->inputs.problem.has_h);
  CHECK_FALSE(read->inputs.problem.has_v_new);
  CHECK(std::memcmp(read->ht.data(), content.data(), content.size()) == 0);
  const TensorFile out = output_tensors(*read, {"ht", "status"}, 5);
  REQUIRE(out.tensors.size() == 2);
  CHECK(out.tensors[1].name == "status");
}

TEST_CASE("lengths make it packed; the output has the chunks that there are", "[cli]") {
  GatedDeltaHProblem p = small();
  p.B = 1;
  p.packed = true;
  p.sequences = 3;
  p.T = 40;
  File file(inputs_of(p));
  file.remove("cu_seqlens");
  file.add_indices("cu_seqlens", {0, 17, 17, 40});
  const auto read = file.read();
  REQUIRE(read.ok());
  CHECK(read->inputs.problem.packed);
  CHECK(read->inputs.problem.sequences == 3);
  CHECK(read->inputs.problem.cu_seqlens_type == IndexType::kInt32);
  CHECK(read->inputs.cu_seqlens == std::vector<std::int64_t>{0, 17, 17, 40});
  const TensorFile out = output_tensors(*read, {}, 0);
  CHECK(out.tensors[0].shape == std::vector<std::int64_t>{2 + 0 + 2, 4, 16, 24});
  // Bad lengths are the kernel's to notice; all of the room is shown then.
  file.remove("cu_seqlens");
  file.add_indices("cu_seqlens", {0, 30, 17, 40});
  const auto lying = file.read();
  REQUIRE(lying.ok());
  CHECK(output_tensors(*lying, {}, 1).tensors[0].shape[0] == (40 + 3 * 15) / 16);
}

TEST_CASE("pools take their size from the file and their slots from the indices", "[cli]") {
  GatedDeltaHProblem p = small();
  File file(inputs_of(p));
  file.at("h0").shape = {2, 4, 16, 24};
  file.add_indices("h0_indices", {1, -1});
  file.add_indices("ht_indices", {0, 1});
  const auto read = file.read("BT=16,ht_slots=7,stride.ht=2000");
  REQUIRE(read.ok());
  CHECK(read->inputs.problem.has_h0_indices);
  CHECK(read->inputs.problem.h0_slots == 2);
  CHECK(read->inputs.problem.ht_slots == 7);
  CHECK(read->ht.size() == 7 * 2000);
  CHECK(read->inputs.h0_indices == std::vector<std::int64_t>{1, -1});
}

TEST_CASE("in place means the same memory, stride, slots and indices", "[cli]") {
  File file(inputs_of(small()));
  file.add_indices("h0_indices", {1, 0});
  const auto read = file.read("BT=16,in_place=ht+v_new,stride.h0=2000,stride.u=100");
  REQUIRE(read.ok());
  CHECK((read->ht_in_place && read->v_new_in_place));
  CHECK(read->inputs.problem.ht_slot_stride == 2000);
  CHECK(read->inputs.problem.v_new_stride == 100);
  CHECK(read->inputs.ht_indices == read->inputs.h0_indices);
  CHECK(std::memcmp(read->ht.data(), read->inputs.h0.data(), read->ht.size() * 4) == 0);
}

TEST_CASE("layout vk swaps the last two extents of states", "[cli]") {
  GatedDeltaHProblem p = small();
  p.layout = StateLayout::kVK;
  File file(inputs_of(p));
  CHECK(file.read("BT=16,layout=vk").ok());
  refused(file.read("BT=16,layout=kv"),
          "h0 has shape [2,4,24,16], it must end in [HV,K,V] = [4,16,24]");
}

TEST_CASE("tensors that do not fit together are refused by name, value and bound", "[cli]") {
  const auto inputs = inputs_of(small());
  for (const char* missing : {"k", "w", "u"}) {
    File file(inputs);
    file.remove(missing);
    refused(file.read(), std::string("has no tensor ") + missing);
  }
  File file(inputs);
  file.at("k").shape = {2, 37, 32};
  refused(file.read(), "k has shape [2,37,32], it must be [B,T,H,K]");
  file = File(inputs);
  file.at("w").shape = {2, 37, 2, 32};
  refused(file.read(), "w has shape [2,37,2,32], it must be [B,T,HV,K] = [2,37,2,16]");
  file = File(inputs);
  file.at("u").type = io::TensorType::kF16;
  refused(file.read(), "u has dtype F16, it must be BF16");
  file = File(inputs);
  for (const char* name : {"k", "w", "u"}) file.at(name).type = io::TensorType::kI16;
  refused(file.read(), "k has dtype I16, it must be BF16 or F16");
  file = File(inputs);
  file.at("g").shape = {2, 4, 37};
  refused(file.read(), "g has shape [2,4,37], it must be [B,T,HV] = [2,37,4]");
  file = File(inputs);
  file.at("h0").shape = {1, 8, 16, 24};
  refused(file.read(), "h0 has shape [1,8,16,24]");
  file = File(inputs);
  file.at("h0").shape = {4, 2, 16, 24};
  refused(file.read(), "h0 has shape [4,2,16,24]");
  file = File(inputs);
  file.add_indices("h0_indices", {0, 1, 2});
  refused(file.read(), "h0_indices has shape [3], it must be [N] = [2]");
  file = File(inputs);
  file.add_indices("cu_seqlens", {0, 37});
  refused(file.read(), "k has B = 2, with cu_seqlens it must be 1");
  file = File(inputs);
  file.add_indices("chunk_offsets", {0, 3});
  refused(file.read(), "chunk_offsets is given without cu_seqlens");
}

TEST_CASE("settings that are out of bounds are refused", "[cli]") {
  const File file(inputs_of(small()));
  refused(file.read("BT=48"), "BT is 48");
  refused(file.read("layout=xy"), "layout is 'xy', it must be kv or vk");
  refused(file.read("gate_base=10"), "gate_base is '10', it must be 2 or e");
  refused(file.read("BT=16,stride.k=31"), "31");
  refused(file.read("BT=16,stride.q=64"), "strides are those of");
  for (const char* settings : {"BT=16,stride.k=1000000000000", "BT=16,stride.k=1099511627776"}) {
    const Status status = file.read(settings).status();
    CHECK(status.code() == ErrorCode::kOutOfMemory);
    CHECK(status.message().find("this machine has") != std::string::npos);
  }
  refused(file.read("temperature=1"), "'temperature' cannot be set");
  refused(file.read("BT=16,in_place=h"), "in_place is 'h'");
  refused(file.read("BT=16", {"o"}), "'o' is no output");
  CHECK(file.read("BT=16,numerics=fast").status().code() == ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace scanjit::test
