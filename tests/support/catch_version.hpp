// HEADWISE_CATCH2: which Catch2 a test is compiled for, 3 or 2. The build says which it links with,
// as a machine may have the headers of both; without a word of it, 3 where it is found.
#pragma once

#ifndef HEADWISE_CATCH2
#if __has_include(<catch2/catch_test_macros.hpp>)
#define HEADWISE_CATCH2 3
#else
#define HEADWISE_CATCH2 2
#endif
#endif
