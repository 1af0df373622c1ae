"""Conan 2 recipe: packages the headers of the checkout that it lies in.

    conan create packaging/conan --build=missing

It builds nothing: the tests are the checkout's own (./dev test).
"""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, load
from conan.tools.layout import basic_layout
from conan.tools.scm import Version

required_conan_version = ">=2.0"


class HeadwiseConan(ConanFile):
    name = "headwise"
    description = "Multi-head attention for CPUs, forward and backward, header-only"
    license = "MIT"
    topics = ("attention", "transformer", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    @property
    def _checkout(self):
        return os.path.join(self.recipe_folder, os.pardir, os.pardir)

    def set_version(self):
        header = load(self, os.path.join(self._checkout, "include", "headwise", "version.hpp"))
        parts = re.findall(r"^#define HEADWISE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.M)
        self.version = ".".join(parts)

    def export_sources(self):
        for pattern in ("include/*", "cmake/HeadwiseGradientCheck.cmake", "LICENSE"):
            copy(self, pattern, src=self._checkout, dst=self.export_sources_folder)

    def layout(self):
        basic_layout(self)

    def requirements(self):
        self.requires("eigen/[>=3.4 <6]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)
        oldest = {"gcc": "12", "clang": "14"}
        compiler = str(self.settings.compiler)
        if compiler not in oldest:
            raise ConanInvalidConfiguration(f"headwise needs gcc or clang, not {compiler}")
        if Version(self.settings.compiler.version) < oldest[compiler]:
            raise ConanInvalidConfiguration(f"headwise needs {compiler} >= {oldest[compiler]}")

    def package_id(self):
        self.info.settings.clear()

    def package(self):
        copy(self, "LICENSE", src=self.source_folder,
             dst=os.path.join(self.package_folder, "licenses"))
        for pattern in ("*.hpp", "*.inc"):
            copy(self, pattern, src=os.path.join(self.source_folder, "include"),
                 dst=os.path.join(self.package_folder, "include"))
        copy(self, "*.cmake", src=os.path.join(self.source_folder, "cmake"),
             dst=os.path.join(self.package_folder, "cmake"))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "headwise")
        self.cpp_info.set_property("cmake_target_name", "headwise::everything")
        self.cpp_info.set_property(
            "cmake_build_modules", [os.path.join("cmake", "HeadwiseGradientCheck.cmake")])

        core = self.cpp_info.components["headwise"]
        core.set_property("cmake_target_name", "headwise::headwise")
        core.set_property("pkg_config_name", "headwise")
        core.requires = ["eigen::eigen"]
        core.bindirs = core.libdirs = []
        if self.settings.os in ("Linux", "FreeBSD"):
            core.system_libs = ["pthread"]

        io = self.cpp_info.components["io"]
        io.set_property("cmake_target_name", "headwise::io")
        io.requires = ["headwise"]
        io.bindirs = io.libdirs = []
