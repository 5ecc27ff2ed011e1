// Is the matrix unit within reach of this compiler? Macros only: kernel_amx.cpp asks before its target pragma.
#pragma once

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 11
#define SHF_HAS_AMX 1
#endif
#endif
