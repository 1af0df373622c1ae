"""Runs packaging/conan's recipe without Conan, and builds its test package from what comes out.

The part of Conan's API that the recipe uses stands below, in the documented meaning of each name;
the find_package file is written from cpp_info as CMakeDeps would. What this cannot show: that Conan
itself accepts the recipe, and that its version ranges find something.

    rehearse_conan.py <checkout> <scratch folder>          Eigen3_DIR, CXX from the environment
"""

import fnmatch
import importlib.util
import os
import shutil
import subprocess
import sys
import types

sys.dont_write_bytecode = True


# ---- Conan's API -----------------------------------------------------------------------------

class ConanInvalidConfiguration(Exception):
    pass


class Settings(types.SimpleNamespace):
    def clear(self):
        self.__dict__.clear()


class Compiler(str):
    """Equal to its name, with a version, as settings.compiler is."""

    version = ""
    cppstd = "20"


class Version:
    def __init__(self, text):
        self.parts = [int(part) for part in str(text).split(".")]

    def __lt__(self, other):
        return self.parts < Version(other).parts


class CppInfo:
    def __init__(self):
        self.includedirs, self.libdirs, self.bindirs = ["include"], ["lib"], ["bin"]
        self.requires, self.system_libs, self.properties = [], [], {}
        self.components = Components()

    def set_property(self, name, value):
        self.properties[name] = value


class Components(dict):
    def __missing__(self, name):
        self[name] = CppInfo()
        return self[name]


class ConanFile:
    def __init__(self, recipe_folder, settings):
        self.recipe_folder = recipe_folder
        self.settings = settings
        self.info = types.SimpleNamespace(settings=Settings(**vars(settings)))
        self.cpp_info = CppInfo()
        self.required = []

    def requires(self, reference, transitive_headers=False):
        assert transitive_headers, f"{reference}: our headers include its headers"
        self.required.append(reference)


def copy(conanfile, pattern, src, dst):
    """Copies what matches, with its path below src, and says what it copied."""
    copied = []
    for folder, _, names in os.walk(src):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), src)
            if fnmatch.fnmatch(path, pattern):
                os.makedirs(os.path.dirname(os.path.join(dst, path)), exist_ok=True)
                shutil.copyfile(os.path.join(src, path), os.path.join(dst, path))
                copied.append(path)
    assert copied, f"nothing in {src} matches {pattern}"
    return copied


def load(conanfile, path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def check_min_cppstd(conanfile, least):
    if int(conanfile.settings.compiler.cppstd) < least:
        raise ConanInvalidConfiguration(f"C++{least} is needed")


def module(name, **names):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(names)


module("conan", ConanFile=ConanFile)
module("conan.errors", ConanInvalidConfiguration=ConanInvalidConfiguration)
module("conan.tools")
module("conan.tools.build", check_min_cppstd=check_min_cppstd)
module("conan.tools.files", copy=copy, load=load)
module("conan.tools.layout", basic_layout=lambda conanfile: None)
module("conan.tools.scm", Version=Version)


# ---- The steps of `conan create` ---------------------------------------------------------------

def settings(compiler="gcc", version="12", cppstd="20"):
    name = Compiler(compiler)
    name.version, name.cppstd = version, cppstd
    return Settings(os="Linux", arch="x86_64", compiler=name, build_type="Release")


def recipe_class(checkout):
    path = os.path.join(checkout, "packaging", "conan", "conanfile.py")
    spec = importlib.util.spec_from_file_location("conanfile", path)
    conanfile = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conanfile)
    return conanfile.HeadwiseConan, os.path.dirname(path)


def create(recipe, recipe_folder, scratch):
    conanfile = recipe(recipe_folder, settings())
    conanfile.set_version()
    conanfile.export_sources_folder = conanfile.source_folder = os.path.join(scratch, "source")
    conanfile.package_folder = os.path.join(scratch, "package")
    conanfile.export_sources()
    conanfile.recipe_folder = None  # in the cache the checkout is out of reach
    conanfile.layout()
    conanfile.requirements()
    conanfile.validate()
    conanfile.package()
    conanfile.package_id()
    assert not vars(conanfile.info.settings), "headers are one package for all settings"
    conanfile.package_info()
    return conanfile


def refuses(recipe, recipe_folder, **kind):
    try:
        recipe(recipe_folder, settings(**kind)).validate()
    except ConanInvalidConfiguration:
        return True
    return False


# Whose targets stand for what another recipe would have provided.
PROVIDED = {
    "eigen::eigen": ("find_package(Eigen3 CONFIG REQUIRED)", "Eigen3::Eigen"),
}


def write_find_package_file(conanfile, folder):
    """headwise-config.cmake, as CMakeDeps makes it from cpp_info."""
    info = conanfile.cpp_info
    target = {name: c.properties["cmake_target_name"] for name, c in info.components.items()}
    assert info.properties["cmake_target_name"] not in target.values(), "two targets of one name"
    lines = []
    for name, component in info.components.items():
        linked = list(component.system_libs)
        for required in component.requires:
            if required in PROVIDED:
                lines.append(PROVIDED[required][0])
                linked.append(PROVIDED[required][1])
            else:
                linked.append(target[required])
        folders = [os.path.join(conanfile.package_folder, d) for d in component.includedirs]
        lines.append(f"add_library({target[name]} INTERFACE IMPORTED)")
        lines.append(f"target_include_directories({target[name]} INTERFACE {' '.join(folders)})")
        lines.append(f"target_link_libraries({target[name]} INTERFACE {' '.join(linked)})")
        for unused in component.libdirs + component.bindirs:
            raise AssertionError(f"{name} names a folder that is not there: {unused}")
    for path in info.properties["cmake_build_modules"]:
        lines.append(f"include({os.path.join(conanfile.package_folder, path)})")
    os.makedirs(folder)
    file_name = info.properties["cmake_file_name"] + "-config.cmake"
    with open(os.path.join(folder, file_name), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(command)}\n{done.stdout}")
    return done.stdout


def main(checkout, scratch):
    shutil.rmtree(scratch, ignore_errors=True)
    recipe, recipe_folder = recipe_class(checkout)
    assert refuses(recipe, recipe_folder, compiler="gcc", version="11")
    assert refuses(recipe, recipe_folder, compiler="clang", version="13")
    assert refuses(recipe, recipe_folder, compiler="msvc", version="193")
    assert refuses(recipe, recipe_folder, cppstd="17")
    assert not refuses(recipe, recipe_folder, compiler="clang", version="14")

    conanfile = create(recipe, recipe_folder, scratch)
    assert list(conanfile.cpp_info.components) == ["headwise", "io"], conanfile.cpp_info.components
    assert len(conanfile.required) == 1, f"headwise needs Eigen alone: {conanfile.required}"
    generators = os.path.join(scratch, "generators")
    write_find_package_file(conanfile, generators)
    build = os.path.join(scratch, "build")
    run("cmake", "-S", os.path.join(recipe_folder, "test_package"), "-B", build,
        f"-Dheadwise_DIR={generators}")
    run("cmake", "--build", build)
    printed = run(os.path.join(build, "hello"))
    assert conanfile.version in printed, printed
    run(os.path.join(build, "io"))
    print(f"the recipe's steps made headwise/{conanfile.version}: {printed}", end="")


main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
