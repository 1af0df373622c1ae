// The main function of every test program, compiled once: Catch2 2.13 is seconds of it.
#include "support/catch_version.hpp"

#if HEADWISE_CATCH2 >= 3
#include <catch2/catch_session.hpp>

int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
#else
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
