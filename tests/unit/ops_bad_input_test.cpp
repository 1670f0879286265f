#include <functional>
#include <random>
#include <string>

#include "ops_samples.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

struct BadProblem {
  const char* what;
  std::function<void(GatedDeltaHProblem&)> spoil;
  ErrorCode code;
  std::vector<std::string> words;  // that the sentence must have: name, value, bound
};

struct BadArgs {
  const char* what;
  std::function<void(GatedDeltaHProblem&)> shape;
  std::function<void(GatedDeltaHArgs&)> spoil;
  std::vector<std::string> words;
};

void check_sentence(const Status& status, ErrorCode code, const std::vector<std::string>& words) {
  CHECK(status.code() == code);
  for (const std::string& word : words) {
    INFO("sentence: " << status.message());
    CHECK(status.message().find(word) != std::string::npos);
  }
}

template <class T>
T* moved(T* pointer, std::ptrdiff_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) +
                              static_cast<std::uintptr_t>(bytes));
}

}  // namespace

TEST_CASE("a bad problem is refused with a sentence that names field, value and bound", "[ops]") {
  const auto invalid = ErrorCode::kInvalidArgument;
  // clang-format off
  const std::vector<BadProblem> rows = {
      {"K 0", [](auto& p) { p.K = 0; }, invalid, {"K is 0", "1 to 256"}},
      {"K 257", [](auto& p) { p.K = 257; }, invalid, {"K is 257", "1 to 256"}},
      {"K negative", [](auto& p) { p.K = -128; }, invalid, {"K is -128"}},
      {"V 0", [](auto& p) { p.V = 0; }, invalid, {"V is 0"}},
      {"H 0", [](auto& p) { p.H = 0; }, invalid, {"H is 0"}},
      {"HV no multiple", [](auto& p) { p.HV = 24; }, invalid, {"HV is 24", "multiple of H = 16"}},
      {"HV 0", [](auto& p) { p.HV = 0; }, invalid, {"HV is 0"}},
      {"BT 48", [](auto& p) { p.BT = 48; }, invalid, {"BT is 48", "16, 32 or 64"}},
      {"BT 0", [](auto& p) { p.BT = 0; }, invalid, {"BT is 0"}},
      {"dtype unknown", [](auto& p) { p.dtype = static_cast<DType>(9); }, invalid, {"dtype is 9"}},
      {"dtype f32", [](auto& p) { p.dtype = DType::kF32; }, ErrorCode::kUnsupported, {"dtype is f32"}},
      {"layout unknown", [](auto& p) { p.layout = static_cast<StateLayout>(0); }, invalid, {"layout is 0"}},
      {"gate base unknown", [](auto& p) { p.gate_base = static_cast<GateBase>(10); }, invalid, {"gate_base is 10"}},
      {"length type unknown", [](auto& p) { p.cu_seqlens_type = static_cast<IndexType>(3); }, invalid, {"cu_seqlens_type is 3"}},
      {"index type unknown", [](auto& p) { p.index_type = static_cast<IndexType>(0); }, invalid, {"index_type is 0"}},
      {"numerics unknown", [](auto& p) { p.numerics = "split64"; }, ErrorCode::kUnsupported, {"numerics is \"split64\"", "default"}},
      {"B negative", [](auto& p) { p.B = -1; }, invalid, {"B is -1"}},
      {"T negative", [](auto& p) { p.T = -64; }, invalid, {"T is -64"}},
      {"B 2 packed", [](auto& p) { p.packed = true; p.B = 2; p.sequences = 3; }, invalid, {"B is 2", "must be 1"}},
      {"N negative", [](auto& p) { p.packed = true; p.B = 1; p.sequences = -1; }, invalid, {"sequences is -1"}},
      {"N not B", [](auto& p) { p.sequences = 5; }, invalid, {"sequences is 5", "B = 4"}},
      {"offsets dense", [](auto& p) { p.has_chunk_offsets = true; }, invalid, {"has_chunk_offsets"}},
      {"h0 indices alone", [](auto& p) { p.has_h0 = false; p.has_h0_indices = true; }, invalid, {"has_h0_indices", "no h0"}},
      {"ht indices alone", [](auto& p) { p.has_ht = false; p.has_ht_indices = true; }, invalid, {"has_ht_indices", "no ht"}},
      {"k stride negative", [](auto& p) { p.k_stride = -2048; }, invalid, {"k_stride is -2048", "H*K = 2048"}},
      {"k stride short", [](auto& p) { p.k_stride = 2047; }, invalid, {"k_stride is 2047", "2048"}},
      {"w stride short", [](auto& p) { p.w_stride = 1; }, invalid, {"w_stride is 1", "4096"}},
      {"u stride short", [](auto& p) { p.u_stride = 4095; }, invalid, {"u_stride is 4095"}},
      {"g stride short", [](auto& p) { p.g_stride = 31; }, invalid, {"g_stride is 31", "32"}},
      {"v_new stride short", [](auto& p) { p.v_new_stride = 8; }, invalid, {"v_new_stride is 8"}},
      {"h0 slot stride short", [](auto& p) { p.h0_slot_stride = 100; }, invalid, {"h0_slot_stride is 100", "HV*K*V"}},
      {"ht slot stride negative", [](auto& p) { p.ht_slot_stride = -1; }, invalid, {"ht_slot_stride is -1"}},
      {"h0 slots few", [](auto& p) { p.h0_slots = 3; }, invalid, {"h0_slots is 3", "4"}},
      {"ht slots negative", [](auto& p) { p.ht_slots = -4; }, invalid, {"ht_slots is -4"}},
      {"max_tokens negative", [](auto& p) { p.max_tokens = -1; }, invalid, {"max_tokens is -1"}},
      {"capacity negative", [](auto& p) { p.chunk_capacity = -1; }, invalid, {"chunk_capacity is -1"}},
      {"capacity of dense h", [](auto& p) { p.chunk_capacity = 63; }, invalid, {"chunk_capacity is 63", "64"}},
      {"T past chunks", [](auto& p) { p.T = kHuge; p.B = 1; }, invalid, {"T is 4611686018427387904"}},
      {"B*T overflows", [](auto& p) { p.B = kHuge; }, invalid, {"B * T", "overflows"}},
      {"row overflows", [](auto& p) { p.H = p.HV = 2147483647; p.V = 1 << 30; }, invalid, {"HV*K*V", "overflows"}},
      {"k extent overflows", [](auto& p) { p.k_stride = kHuge; }, invalid, {"k has 4096 rows", "63 bits"}},
      {"pool overflows", [](auto& p) { p.has_h0_indices = true; p.h0_slots = kHuge; }, invalid, {"h0 has", "63 bits"}},
      {"one row overflows in bytes", [](auto& p) { p.B = 1; p.T = 1; p.u_stride = kHuge; }, invalid, {"u has 1 rows", "63 bits"}},
      {"too many blocks", [](auto& p) { p.B = 100'000'000; p.T = 1; }, ErrorCode::kUnsupported, {"N = 100000000", "2147483647 blocks"}},
      {"lengths past int32", [](auto& p) { p.packed = true; p.B = 1; p.sequences = 1; p.cu_seqlens_type = IndexType::kInt32; p.T = 3'000'000'000; },
       invalid, {"T is 3000000000", "int32"}},
      {"N*(BT-1) overflows", [](auto& p) { p.packed = true; p.B = 1; p.sequences = kHuge; p.has_h0 = p.has_ht = false; }, invalid, {"overflows"}},
  };
  // clang-format on
  for (const BadProblem& row : rows) {
    INFO(row.what);
    GatedDeltaHProblem problem = layer(4, 1024);
    row.spoil(problem);
    const auto result = ops::GatedDeltaH::make(problem);
    REQUIRE_FALSE(result.ok());
    check_sentence(result.status(), row.code, row.words);
    CHECK(workspace_bound(problem).status().code() == row.code);
  }
  REQUIRE(ops::GatedDeltaH::make(layer(4, 1024)).ok());
}

TEST_CASE("bad addresses are refused before a launch", "[ops]") {
  const auto same = [](auto&) {};
  const auto pack = [](GatedDeltaHProblem& p) { p = packed_layer(4, 4096); };
  const auto pool = [](GatedDeltaHProblem& p) {
    p.has_h0_indices = p.has_ht_indices = true;
    p.h0_slots = p.ht_slots = 9;
  };
  static const std::int64_t negative[] = {0, -1, 4096, 4096, 4096},
                            decreasing[] = {0, 100, 99, 4096, 4096}, past[] = {0, 1, 2, 3, 4097};
  const std::int64_t state = 32 * 128 * 128 * 4;  // bytes
  // clang-format off
  const std::vector<BadArgs> rows = {
      {"k null", same, [](auto& a) { a.k = nullptr; }, {"k is null"}},
      {"w null", same, [](auto& a) { a.w = nullptr; }, {"w is null"}},
      {"u null", same, [](auto& a) { a.u = nullptr; }, {"u is null"}},
      {"g null", same, [](auto& a) { a.g = nullptr; }, {"g is null"}},
      {"h0 null", same, [](auto& a) { a.h0 = nullptr; }, {"h0 is null"}},
      {"h null", same, [](auto& a) { a.h = nullptr; }, {"h is null"}},
      {"v_new null", same, [](auto& a) { a.v_new = nullptr; }, {"v_new is null"}},
      {"ht null", same, [](auto& a) { a.ht = nullptr; }, {"ht is null"}},
      {"cu_seqlens null", pack, [](auto& a) { a.cu_seqlens = nullptr; }, {"cu_seqlens is null"}},
      {"h0_indices null", pool, [](auto& a) { a.h0_indices = nullptr; }, {"h0_indices is null"}},
      {"gk given", same, [](auto& a) { a.gk = a.g; }, {"gk is given"}},
      {"cu_seqlens given", same, [](auto& a) { a.cu_seqlens = a.k; }, {"cu_seqlens is given"}},
      {"k odd", same, [](auto& a) { a.k = moved(a.k, 1); }, {"k lies 1 bytes", "16"}},
      {"k 8 bytes off", same, [](auto& a) { a.k = moved(a.k, 8); }, {"k lies 8 bytes", "aligned16"}},
      {"h 2 bytes off", same, [](auto& a) { a.h = moved(a.h, 2); }, {"h lies 2 bytes"}},
      {"k odd on the general path", [](auto& p) { p.aligned16 = false; }, [](auto& a) { a.k = moved(a.k, 1); }, {"k lies 1 bytes past a multiple of 2"}},
      {"g 2 bytes off", same, [](auto& a) { a.g = moved(a.g, 2); }, {"g lies 2 bytes past a multiple of 4"}},
      {"lengths 4 bytes off", pack, [](auto& a) { a.cu_seqlens = moved(a.cu_seqlens, 4); }, {"cu_seqlens lies 4 bytes past a multiple of 8"}},
      {"status 2 bytes off", same, [](auto& a) { a.status = reinterpret_cast<std::uint32_t*>(2); }, {"status"}},
      {"v_new is k", same, [](auto& a) { a.v_new = const_cast<void*>(a.k); }, {"v_new overlaps k"}},
      {"v_new partly u", same, [](auto& a) { a.v_new = moved(const_cast<void*>(a.u), 16); }, {"v_new overlaps u", "exactly u"}},
      {"v_new is u of another stride", [](auto& p) { p.u_stride = 8192; }, [](auto& a) { a.v_new = const_cast<void*>(a.u); }, {"v_new overlaps u", "same stride"}},
      {"h is v_new", same, [](auto& a) { a.h = a.v_new; }, {"v_new overlaps h"}},
      {"ht is h", same, [](auto& a) { a.ht = static_cast<float*>(a.h); }, {"ht overlaps h"}},
      {"ht partly h0", same, [=](auto& a) { a.ht = moved(const_cast<float*>(a.h0), state); }, {"ht overlaps h0", "exactly h0"}},
      {"ht is h0 with other indices", pool, [](auto& a) { a.ht = const_cast<float*>(a.h0); }, {"ht overlaps h0", "indices"}},
      {"ht is h0 with other slots", [](auto& p) { p.h0_slots = 5; },
       [](auto& a) { a.ht = const_cast<float*>(a.h0); }, {"ht overlaps h0", "slots"}},
      {"status in h0", same, [](auto& a) { a.status = const_cast<std::uint32_t*>(reinterpret_cast<const std::uint32_t*>(a.h0)); }, {"status overlaps h0"}},
      {"host length negative", pack, [](auto& a) { a.host_cu_seqlens = negative; }, {"host_cu_seqlens[1] is -1"}},
      {"host lengths decrease", pack, [](auto& a) { a.host_cu_seqlens = decreasing; }, {"host_cu_seqlens[2] is 99", "100"}},
      {"host lengths past the end", pack, [](auto& a) { a.host_cu_seqlens = past; }, {"host_cu_seqlens[4] is 4097", "4096"}},
      {"host lengths of dense", same, [](auto& a) { a.host_cu_seqlens = past; }, {"host_cu_seqlens", "not packed"}},
      {"capacity without host copy", [=](auto& p) { pack(p); p.chunk_capacity = 66; }, [](auto&) {}, {"chunk_capacity is 66", "= 67"}},
  };
  // clang-format on
  for (const BadArgs& row : rows) {
    INFO(row.what);
    GatedDeltaHProblem problem = layer(4, 1024);
    row.shape(problem);
    const auto op = made(problem);
    REQUIRE(op != nullptr);
    GatedDeltaHArgs args = far_apart(problem);
    REQUIRE((problem.chunk_capacity != 0 || checked(*op, args, {}).ok()));
    row.spoil(args);
    check_sentence(checked(*op, args, {}), ErrorCode::kInvalidArgument, row.words);
  }
}

TEST_CASE("what aliasing allows", "[ops]") {
  GatedDeltaHProblem problem = layer(4, 1024);
  const auto op = made(problem);
  GatedDeltaHArgs args = far_apart(problem);
  args.v_new = const_cast<void*>(args.u);
  args.ht = const_cast<float*>(args.h0);
  CHECK(checked(*op, args, {}).ok());

  // Inputs may overlap inputs.
  args.w = args.k;
  args.u = args.k;
  args.v_new = far_apart(problem).v_new;
  CHECK(checked(*op, args, {}).ok());

  // k, w, u and v_new as slices of one buffer with one token stride: 2048 + 3 * 4096 elements a
  // token.
  problem.k_stride = problem.w_stride = problem.u_stride = problem.v_new_stride = 2048 + 3 * 4096;
  const auto fused = made(problem);
  args = far_apart(problem);
  auto* base = static_cast<unsigned char*>(const_cast<void*>(args.k));
  args.w = base + 2 * 2048;
  args.u = base + 2 * (2048 + 4096);
  args.v_new = base + 2 * (2048 + 2 * 4096);
  CHECK(checked(*fused, args, {}).ok());
  args.v_new = base + 2 * (2048 + 2 * 4096) - 16;
  CHECK(checked(*fused, args, {}).message().find("v_new overlaps u") != std::string::npos);

  // A pool updated in place.
  GatedDeltaHProblem pool = layer(4, 1024);
  pool.has_h0_indices = pool.has_ht_indices = true;
  pool.h0_slots = pool.ht_slots = 100;
  args = far_apart(pool);
  args.ht = const_cast<float*>(args.h0);
  args.ht_indices = args.h0_indices;
  CHECK(checked(*made(pool), args, {}).ok());
}

TEST_CASE("tensors without elements may be null, and no sequences need nothing", "[ops]") {
  const auto none = made(layer(0, 1024));
  REQUIRE(none != nullptr);
  CHECK(checked(*none, {}, {}).ok());
  CHECK(none->stages({32, 64, 2, 4}, h200()).empty());
  CHECK(checked(*made(packed_layer(0, 0)), {}, {}).ok());

  const auto no_tokens = made(layer(4, 0));
  GatedDeltaHArgs args;
  args.h0 = far_apart(layer(4, 0)).h0;
  args.ht = far_apart(layer(4, 0)).ht;
  CHECK(checked(*no_tokens, args, {}).ok());
  CHECK(no_tokens->stages({32, 64, 2, 4}, h200()).size() == 1);
  args.ht = nullptr;
  CHECK_FALSE(checked(*no_tokens, args, {}).ok());
}

TEST_CASE("a host copy of the lengths decides how many chunks are needed", "[ops]") {
  GatedDeltaHProblem problem = packed_layer(3, 200);
  problem.chunk_capacity = 4;
  const auto op = made(problem);
  GatedDeltaHArgs args = far_apart(problem);
  CHECK_FALSE(checked(*op, args, {}).ok());  // up to floor((200 + 3*63)/64) = 6
  const std::int64_t four[] = {0, 64, 128, 200}, five[] = {0, 1, 66, 200};
  args.host_cu_seqlens = four;
  CHECK(checked(*op, args, {}).ok());
  args.host_cu_seqlens = five;
  const Status status = checked(*op, args, {});
  CHECK(status.message().find("room for 4 chunks, but host_cu_seqlens makes 6") !=
        std::string::npos);
}

TEST_CASE("the workspace is bounded by a pure function and checked", "[ops]") {
  CHECK(*workspace_bound(layer(4, 1024)) == 0);
  CHECK(*workspace_bound(packed_layer(64, 4096)) == 0);
  GatedDeltaHProblem problem = packed_layer(65, 4096);
  CHECK(*workspace_bound(problem) == 768);  // 65 * 8, rounded up to 256
  problem.cu_seqlens_type = IndexType::kInt32;
  CHECK(*workspace_bound(problem) == 512);
  problem.has_chunk_offsets = true;
  CHECK(*workspace_bound(problem) == 0);
  problem.has_chunk_offsets = false;
  problem.has_h = false;
  CHECK(*workspace_bound(problem) == 0);

  problem.has_h = true;
  const auto op = made(problem);
  const GatedDeltaHArgs args = far_apart(problem);
  CHECK(checked(*op, args, {}).message().find("workspace is 0 bytes; this problem needs 512") !=
        std::string::npos);
  CHECK_FALSE(checked(*op, args, workspace_of(511)).ok());
  CHECK(checked(*op, args, workspace_of(512)).ok());
  CHECK_FALSE(checked(*op, args, {moved(workspace_of(512).data, 64), 512}).ok());
  CHECK(
      checked(*op, args, {const_cast<void*>(args.k), 512}).message().find("workspace overlaps k") !=
      std::string::npos);
}

TEST_CASE("the quick look at a launch's arguments passes nothing that the full one refuses",
          "[ops]") {
  std::mt19937 random(5);
  const auto chance = [&](unsigned one_in) { return random() % one_in == 0; };
  // A word that keeps the quick look away.
  alignas(4) static std::uint32_t word = 0;
  int fine = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    GatedDeltaHProblem p;
    p.packed = chance(2);
    p.T = 1 + static_cast<std::int64_t>(random() % 200);
    (p.packed ? p.sequences : p.B) = 1 + static_cast<std::int64_t>(random() % 3);
    p.H = 1;
    p.HV = 1 + static_cast<std::int64_t>(random() % 2);
    p.K = p.V = chance(3) ? 24 : 16;
    p.BT = 16;
    p.has_g = chance(2);
    p.has_gk = chance(3);
    p.has_h0 = chance(2);
    p.has_h = chance(2);
    p.has_v_new = chance(2);
    p.has_ht = chance(2);
    p.has_h0_indices = p.has_h0 && chance(3);
    p.has_ht_indices = p.has_ht && chance(3);
    p.aligned16 = chance(2);
    if (p.has_h0_indices) p.h0_slots = 4;
    if (p.has_ht_indices) p.ht_slots = 4;
    if (chance(4)) p.u_stride = p.v_new_stride = p.HV * p.V + 8;
    const auto op = made(p);
    REQUIRE(op != nullptr);
    // Everything in a few places of one buffer, so that pairs meet, touch, or are the same.
    const auto place = [&]() -> std::uintptr_t {
      return chance(40) ? 0
                        : (std::uintptr_t{1} << 32) + (random() % 300) * 4096 +
                              (chance(8) ? random() % 4 * 4 : 0);
    };
    const auto at = [&](bool exists) {
      return exists != chance(60) ? reinterpret_cast<void*>(place()) : nullptr;
    };
    const auto floats = [&](bool exists) { return static_cast<float*>(at(exists)); };
    GatedDeltaHArgs args;
    args.k = at(true);
    args.w = at(true);
    args.u = at(true);
    args.g = floats(p.has_g);
    args.gk = floats(p.has_gk);
    args.h0 = floats(p.has_h0);
    args.h0_indices = at(p.has_h0_indices);
    args.cu_seqlens = at(p.packed);
    args.ht_indices = p.has_ht_indices && chance(2) ? args.h0_indices : at(p.has_ht_indices);
    args.h = at(p.has_h);
    args.v_new = p.has_v_new && chance(3) ? const_cast<void*>(args.u) : at(p.has_v_new);
    args.ht = p.has_ht && chance(3) ? const_cast<float*>(args.h0) : floats(p.has_ht);
    const bool quick = checked(*op, args, {}).ok();
    args.status = &word;
    const Status full = checked(*op, args, {});
    INFO("round " << round << ": " << full.to_string());
    CHECK(quick == full.ok());
    ++(full.ok() ? fine : refused);
  }
  CHECK(fine > 1000);
  CHECK(refused > 1000);
}
