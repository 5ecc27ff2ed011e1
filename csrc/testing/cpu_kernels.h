// Adds the CPU kernels to the testing module.
#pragma once

#include <pybind11/pybind11.h>

void bind_cpu_kernels(pybind11::module_& m);
