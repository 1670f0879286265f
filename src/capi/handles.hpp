#pragma once
/// \file
/// What the handles of the C interface hold.

#include "scanjit/engine.hpp"
#include "scanjit/scanjit.h"

struct scanjit_engine {
  scanjit::Engine engine;
};
struct scanjit_plan {
  scanjit::Plan plan;
};
