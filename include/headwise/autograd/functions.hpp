// All functions of the tape: the library's operations on variables.
#pragma once

#include "headwise/autograd/attention.hpp"
#include "headwise/autograd/concatenate.hpp"
#include "headwise/autograd/elementwise.hpp"
#include "headwise/autograd/layers.hpp"
#include "headwise/autograd/matmul.hpp"
#include "headwise/autograd/model_functions.hpp"
#include "headwise/autograd/packed_attention.hpp"
#include "headwise/autograd/sum.hpp"
#include "headwise/autograd/views.hpp"
