// run and verify of ABC: files, refusals, and against a driver that computes nothing.
#include "io/safetensors.hpp"
#include "ops_abc_samples.hpp"
#include "packed_world.hpp"

namespace scanjit::test {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kAbcShape = "N=1,T=70,H=1,K=16,M=8,V=16";

// A pack with machine code of both directions.
struct AbcWorld : PackedWorld {
  AbcWorld() {
    AbcForwardProblem forward = abc_forward_layer(1, 70);
    AbcBackwardProblem backward = abc_backward_layer(1, 70);
    for (AbcProblem* p :
         {static_cast<AbcProblem*>(&forward), static_cast<AbcProblem*>(&backward)}) {
      p->H = 1;
      p->K = p->V = 16;
      p->M = 8;
    }
    stock(forward);
    stock(backward);
  }
  std::string example(const std::string& op, const std::string& shape) const {
    const std::string path = folder.file(op + ".safetensors");
    const Ran ran = run({"run", op, "--example", path, "--shape", shape});
    INFO(ran.err);
    REQUIRE(ran.exit == 0);
    return path;
  }
};

}  // namespace

TEST_CASE("ABC runs on the tensors of a file and writes its outputs", "[cli]") {
  const AbcWorld world;
  const std::string out = world.folder.file("y.safetensors");
  for (const std::string op : {"abc_forward", "abc_backward"}) {
    INFO(op);
    const std::string in = world.example(op, kAbcShape);
    const Ran ran = world.gpu({"run", op, "--in", in, "--out", out, "--json"});
    INFO(ran.err);
    REQUIRE(ran.exit == 0);
    const auto json = ran.json();
    CHECK(json["config"]["segment_chunks"] == 2);
    const auto& outputs = json["outputs"];
    REQUIRE(outputs.size() == 4);
    CHECK(outputs[0]["name"] == (op == "abc_forward" ? "o" : "dq"));
    CHECK(outputs[0]["dtype"] == "BF16");
    CHECK(outputs[0]["shape"] == nlohmann::json({1, 70, 1, 16}));
    const auto written = io::Safetensors::read(out);
    REQUIRE(written.ok());
    CHECK(written->tensors().size() == 4);
    // A driver that computes nothing leaves the NaN that outputs begin with: the oracle objects.
    const Ran checked = world.gpu({"run", op, "--in", in, "--check"});
    CHECK(checked.exit == cli::kExitFailed);
    CHECK(checked.out.find("FAILED: " + std::string(op == "abc_forward" ? "o" : "dq")) !=
          std::string::npos);
  }
  const Ran some =
      world.gpu({"run", "abc_forward", "--in", world.folder.file("abc_forward.safetensors"),
                 "--want", "zt,o", "--set", "numerics=segments2", "--json"});
  INFO(some.err);
  REQUIRE(some.exit == 0);
  CHECK(some.json()["outputs"].size() == 2);
}

TEST_CASE("what ABC cannot run is refused before a GPU is looked for", "[cli]") {
  const AbcWorld world;
  const std::string in = world.example("abc_forward", kAbcShape);
  const auto refused = [&](const Words& arguments, const std::string& words) {
    INFO(words);
    check_failure(world.spawn_without_gpu(arguments), cli::kExitUsage, words);
  };
  refused({"run", "abc_forward"}, "no input file");
  refused({"run", "abc_backward", "--in", in}, "the tensor dout is missing");
  refused({"run", "abc_forward", "--in", in, "--want", "dq"}, "'dq' is no output");
  refused({"run", "abc_forward", "--in", in, "--set", "BT=64"}, "it has numerics");
  refused({"run", "abc_forward", "--in", in, "--set", "numerics=split64"}, "split64");
  refused({"run", "abc_forward", "--in", in, "--gates", "slow"}, "--gates");
  refused({"run", "abc_forward", "--in", in, "--config",
           "bv=64,bk=64,stages=2,warps=8,segment_chunks=4"},
          "segment_chunks=2");
  refused({"verify", "abc_forward", "--negative"}, "--negative has no effect");
  refused({"verify", "abc_backward", "--gates", "slow"}, "--gates has no effect");
  refused({"verify", "abc_backward", "--max-tokens", "5"}, "--max-tokens has no effect");
  refused({"verify", "abc_forward", "--shape", "BT=16"}, "BT is 16");
  refused({"verify", "abc_forward", "--shape", "M=200"}, "M is 200");

  // Tensors of another shape or type.
  const auto file = io::Safetensors::read(in);
  REQUIRE(file.ok());
  const auto spoiled = [&](auto spoil) {
    std::vector<io::TensorView> tensors = file->tensors();
    for (io::TensorView& tensor : tensors) spoil(tensor);
    const std::string path = world.folder.file("bad.safetensors");
    REQUIRE(io::write_safetensors(path, tensors).ok());
    return path;
  };
  refused({"run", "abc_forward", "--in", spoiled([](auto& t) {
             if (t.name == "k") t.shape = {70, 1, 1, 16};
           })},
          "k is [70,1,1,16], it must be [1,70,1,16]");
  refused({"run", "abc_forward", "--in", spoiled([](auto& t) {
             if (t.name == "s") t.type = io::TensorType::kF16;
           })},
          "s is F16, it must be BF16");
  refused({"run", "abc_forward", "--in", spoiled([](auto& t) {
             if (t.name == "v") t.name = "w";
           })},
          "the tensor v is missing");
}

TEST_CASE("verify holds ABC against its oracle and says how to repeat a failure", "[cli]") {
  const AbcWorld world;
  const Ran ran = world.gpu({"verify", "abc_forward", "--shape", kAbcShape, "--json"});
  INFO(ran.err);
  CHECK(ran.exit == cli::kExitFailed);
  const auto json = ran.json();
  CHECK(json["failed"] == 1);
  CHECK(json["cases"][0]["reason"].get<std::string>().find("o:") != std::string::npos);
  CHECK(json["cases"][0]["repeat"].get<std::string>().find("verify abc_forward --shape N=1,T=70") !=
        std::string::npos);
}

}  // namespace scanjit::test
