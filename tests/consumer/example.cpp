// A server embeds scanjit in these lines: make an engine once, a plan per shape, and launch on a
// stream.

#include <cstdio>

#include "scanjit/engine.hpp"

// `args` holds device addresses, `stream` is the caller's own; nothing here waits for the GPU.
static scanjit::Status scan(scanjit::Engine& engine, const scanjit::GatedDeltaHProblem& problem,
                            const scanjit::GatedDeltaHArgs& args, scanjit::Workspace workspace,
                            scanjit::Stream stream) {
  scanjit::Result<scanjit::Plan> plan =
      engine.plan(problem);  // compiles and tunes on the first call
  if (!plan.ok()) return plan.status();
  std::printf("config %s: %s\n", scanjit::to_string(plan->why().config).c_str(),
              plan->why().text.c_str());
  return plan->launch(args, workspace, stream);
}

int main() {
  scanjit::Result<scanjit::Engine> engine = scanjit::Engine::create({});
  if (!engine.ok()) {
    std::printf("no engine: %s\n", engine.status().to_string().c_str());
    return engine.status().code() == scanjit::ErrorCode::kUnsupported ? 0 : 1;
  }
  scanjit::GatedDeltaHProblem problem;
  problem.B = 16;    // sequences of T tokens
  problem.T = 1024;  // K, V, BT and bf16 as by default
  problem.H = 16;
  problem.HV = 32;
  problem.has_g = true;
  // No tensors here: the engine says which one it misses, and launches nothing.
  const scanjit::Status status = scan(*engine, problem, {}, {}, nullptr);
  std::printf("%s\n", status.to_string().c_str());
  return status.code() == scanjit::ErrorCode::kInvalidArgument ? 0 : 1;
}
