#include <functional>
#include <limits>
#include <string>

#include "kda_samples.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 62;
constexpr std::int64_t kEnough = std::int64_t{1} << 40;

struct BadProblem {
  const char* what;
  std::function<void(KdaForwardProblem&)> spoil;
  ErrorCode code;
  std::vector<std::string> words;  // that the sentence must have: name, value, bound
};

struct BadArgs {
  const char* what;
  std::function<void(KdaForwardProblem&)> shape;
  std::function<void(KdaForwardArgs&)> spoil;
  std::vector<std::string> words;
};

void check_words(const Status& status, ErrorCode code, const std::vector<std::string>& words) {
  INFO("sentence: " << status.message());
  CHECK(status.code() == code);
  for (const std::string& word : words) CHECK(status.message().find(word) != std::string::npos);
}

template <class T>
T* later(T* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + bytes);
}

Status checked(const KdaForwardProblem& problem, const KdaForwardArgs& args,
               Workspace workspace = kda_workspace(kEnough)) {
  const auto op = made(problem);
  return op->check_args(args, workspace, op->workspace_bound());
}

}  // namespace

TEST_CASE("a bad problem of KDA is refused with a sentence that names field, value and bound",
          "[ops][kda]") {
  const auto invalid = ErrorCode::kInvalidArgument, unsupported = ErrorCode::kUnsupported;
  // clang-format off
  const std::vector<BadProblem> rows = {
      {"K 96", [](auto& p) { p.K = 96; }, unsupported, {"K is 96", "64, 128 or 256"}},
      {"V 0", [](auto& p) { p.V = 0; }, unsupported, {"V is 0"}},
      {"H 0", [](auto& p) { p.H = 0; }, invalid, {"H is 0"}},
      {"HV no multiple", [](auto& p) { p.HV = 48; }, invalid, {"HV is 48", "multiple of H = 32"}},
      {"gate unknown", [](auto& p) { p.gate = static_cast<KdaGate>(5); }, invalid, {"gate is 5"}},
      {"layout unknown", [](auto& p) { p.layout = static_cast<StateLayout>(0); }, invalid, {"layout is 0"}},
      {"lower_bound below -5", [](auto& p) { p.lower_bound = -5.5F; }, invalid, {"lower_bound is -5.5", "-5"}},
      {"lower_bound 0", [](auto& p) { p.lower_bound = 0; }, invalid, {"lower_bound is 0"}},
      {"lower_bound NaN", [](auto& p) { p.lower_bound = std::numeric_limits<float>::quiet_NaN(); }, invalid, {"lower_bound is"}},
      {"scale infinite", [](auto& p) { p.scale = std::numeric_limits<float>::infinity(); }, invalid, {"scale is inf", "finite"}},
      {"A_log of precomputed", [](auto& p) { p.gate = KdaGate::kPrecomputed; }, invalid, {"has_A_log", "precomputed"}},
      {"dt_bias of scalar", [](auto& p) { p.gate = KdaGate::kScalar; p.has_A_log = false; }, invalid, {"has_dt_bias", "scalar"}},
      {"bf16 of scalar", [](auto& p) { p.gate = KdaGate::kScalar; p.has_A_log = p.has_dt_bias = false; }, invalid, {"g_dtype", "f32"}},
      {"g f16", [](auto& p) { p.g_dtype = DType::kF16; }, unsupported, {"g_dtype is f16"}},
      {"beta unknown", [](auto& p) { p.beta_dtype = static_cast<DType>(7); }, invalid, {"beta_dtype is 7"}},
      {"states f16", [](auto& p) { p.state_dtype = DType::kF16; }, unsupported, {"state_dtype is f16"}},
      {"B negative", [](auto& p) { p.B = -1; }, invalid, {"B is -1"}},
      {"T negative", [](auto& p) { p.T = -64; }, invalid, {"T is -64"}},
      {"T too long", [](auto& p) { p.T = kHuge; }, invalid, {"T is 4611686018427387904", "chunks"}},
      {"packed of two", [](auto& p) { p.packed = true; p.B = 2; }, invalid, {"B is 2", "must be 1"}},
      {"sequences of dense", [](auto& p) { p.sequences = 3; }, invalid, {"sequences is 3", "B = 4"}},
      {"sequences huge", [](auto& p) { p.packed = true; p.B = 1; p.sequences = kHuge; }, invalid, {"h0 has 4611686018427387904 rows", "63 bits"}},
      {"q_stride short", [](auto& p) { p.q_stride = 4095; }, invalid, {"q_stride is 4095", "H*K = 4096"}},
      {"g_stride short", [](auto& p) { p.g_stride = 1; }, invalid, {"g_stride is 1", "HV*K = 4096"}},
      {"beta_stride short", [](auto& p) { p.beta_stride = 31; }, invalid, {"beta_stride is 31", "HV = 32"}},
      {"o_stride negative", [](auto& p) { p.o_stride = -8; }, invalid, {"o_stride is -8"}},
      {"v_stride huge", [](auto& p) { p.v_stride = kHuge; }, invalid, {"v has 4096 rows"}},
      {"indices without h0", [](auto& p) { p.has_h0 = false; p.has_h0_indices = true; }, invalid, {"has_h0_indices", "no h0"}},
      {"few slots", [](auto& p) { p.ht_slots = 3; }, invalid, {"ht_slots is 3", "sequences, 4"}},
      {"checkpoints negative", [](auto& p) { p.checkpoints = -1; }, invalid, {"checkpoints is -1"}},
      {"max_tokens negative", [](auto& p) { p.max_tokens = -1; }, invalid, {"max_tokens is -1"}},
      {"numerics unknown", [](auto& p) { p.numerics = "fast"; }, unsupported, {"numerics is \"fast\"", "default, any, or split1"}},
      {"split of nothing", [](auto& p) { p.numerics = "split"; }, unsupported, {"numerics is \"split\""}},
      {"split0", [](auto& p) { p.numerics = "split0"; }, unsupported, {"numerics is \"split0\""}},
      {"split08", [](auto& p) { p.numerics = "split08"; }, unsupported, {"numerics is \"split08\""}},
      {"split too long", [](auto& p) { p.numerics = "split65537"; }, unsupported, {"split65536"}},
      {"workspace negative", [](auto& p) { p.workspace_limit = -1; }, invalid, {"workspace_limit is -1"}},
      {"workspace too small", [](auto& p) { p.workspace_limit = 1 << 20; }, unsupported, {"workspace_limit is 1048576", "the least is"}},
      {"workspace too small to split", [](auto& p) { p.workspace_limit = 16 << 20; p.numerics = "split4"; }, unsupported, {"workspace_limit is", "split4"}},
      {"too many blocks", [](auto& p) { p.packed = true; p.B = 1; p.sequences = 1 << 26; p.has_h0 = p.has_ht = false; }, unsupported, {"N = 67108864", "split the batch"}},
  };
  // clang-format on
  for (const BadProblem& row : rows) {
    INFO(row.what);
    KdaForwardProblem problem = kda_layer(4, 1024);
    REQUIRE(made(problem) != nullptr);
    row.spoil(problem);
    check_words(ops::KdaForward::make(problem).status(), row.code, row.words);
    CHECK(workspace_bound(problem).status().code() == row.code);
  }
}

TEST_CASE("bad arguments of KDA are refused with a sentence that names the tensor", "[ops][kda]") {
  const auto same = [](KdaForwardProblem&) {};
  const auto pack = [](KdaForwardProblem& p) { p = packed_kda(4, 4096); };
  const auto pool = [](KdaForwardProblem& p) {
    p.has_h0_indices = p.has_ht_indices = true;
    p.h0_slots = p.ht_slots = 9;
  };
  static const std::int64_t decreasing[] = {0, 100, 99, 300, 400}, past[] = {0, 1, 2, 3, 4097};
  // clang-format off
  const std::vector<BadArgs> rows = {
      {"q null", same, [](auto& a) { a.q = nullptr; }, {"q is null"}},
      {"beta null", same, [](auto& a) { a.beta = nullptr; }, {"beta is null"}},
      {"A_log null", same, [](auto& a) { a.A_log = nullptr; }, {"A_log is null"}},
      {"o null", same, [](auto& a) { a.o = nullptr; }, {"o is null"}},
      {"ht null", same, [](auto& a) { a.ht = nullptr; }, {"ht is null"}},
      {"lengths null", pack, [](auto& a) { a.cu_seqlens = nullptr; }, {"cu_seqlens is null"}},
      {"lengths given", same, [](auto& a) { a.cu_seqlens = a.q; }, {"cu_seqlens is given"}},
      {"checkpoints given", same, [](auto& a) { a.checkpoints = a.o; }, {"checkpoints is given"}},
      {"offsets null", [](auto& p) { p.checkpoints = 2; }, [](auto& a) { a.checkpoint_offsets = nullptr; }, {"checkpoint_offsets is null"}},
      {"q 8 bytes off", same, [](auto& a) { a.q = later(a.q, 8); }, {"q lies 8 bytes", "aligned16"}},
      {"g 4 bytes off", same, [](auto& a) { a.g = later(a.g, 4); }, {"g lies 4 bytes past a multiple of 16"}},
      {"o odd on the general path", [](auto& p) { p.aligned16 = false; }, [](auto& a) { a.o = later(a.o, 1); }, {"o lies 1 bytes past a multiple of 2"}},
      {"h0 2 bytes off", same, [](auto& a) { a.h0 = later(a.h0, 2); }, {"h0 lies 2 bytes past a multiple of 4"}},
      {"status 2 bytes off", same, [](auto& a) { a.status = reinterpret_cast<std::uint32_t*>(2); }, {"status"}},
      {"o is v", same, [](auto& a) { a.o = const_cast<void*>(a.v); }, {"o overlaps v"}},
      {"ht in g", same, [](auto& a) { a.ht = const_cast<void*>(a.g); }, {"ht overlaps g"}},
      {"ht partly h0", same, [](auto& a) { a.ht = later(const_cast<void*>(a.h0), 4); }, {"ht overlaps h0", "exactly h0"}},
      {"ht is h0 with other indices", pool, [](auto& a) { a.ht = const_cast<void*>(a.h0); }, {"ht overlaps h0", "indices"}},
      {"status in dt_bias", same, [](auto& a) { a.status = reinterpret_cast<std::uint32_t*>(const_cast<float*>(a.dt_bias)); }, {"status overlaps dt_bias"}},
      {"host lengths decrease", pack, [](auto& a) { a.host_cu_seqlens = decreasing; }, {"host_cu_seqlens[2] is 99", "100"}},
      {"host lengths past the end", pack, [](auto& a) { a.host_cu_seqlens = past; }, {"host_cu_seqlens[4] is 4097", "4096"}},
      {"host lengths of dense", same, [](auto& a) { a.host_cu_seqlens = past; }, {"host_cu_seqlens", "not packed"}},
  };
  // clang-format on
  for (const BadArgs& row : rows) {
    INFO(row.what);
    KdaForwardProblem problem = kda_layer(4, 1024);
    row.shape(problem);
    KdaForwardArgs args = far_apart(problem);
    REQUIRE(checked(problem, args).ok());
    row.spoil(args);
    check_words(checked(problem, args), ErrorCode::kInvalidArgument, row.words);
  }
}

TEST_CASE("KDA's workspace is checked, and states may be updated in place", "[ops][kda]") {
  const KdaForwardProblem problem = kda_layer(4, 1024);
  const std::int64_t need = made(problem)->workspace_bound();
  KdaForwardArgs args = far_apart(problem);
  args.ht = const_cast<void*>(args.h0);
  CHECK(checked(problem, args, kda_workspace(need)).ok());
  const auto invalid = ErrorCode::kInvalidArgument;
  check_words(checked(problem, args, kda_workspace(need - 1)), invalid,
              {"workspace is " + std::to_string(need - 1), "needs " + std::to_string(need)});
  check_words(checked(problem, args, {}), invalid, {"workspace is 0 bytes"});
  check_words(checked(problem, args, {later(kda_workspace(0).data, 64), need}), invalid, {"256"});
  check_words(checked(problem, args, {const_cast<void*>(args.v), need}), invalid,
              {"workspace overlaps v"});
  // N = 0 asks for nothing.
  CHECK(made(kda_layer(0, 1024))->check_args({}, {}, 0).ok());
}
