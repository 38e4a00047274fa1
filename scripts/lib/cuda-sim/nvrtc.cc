// The simulated NVRTC: compiles CUDA C with g++ and shim.h to a shared object that the simulated driver loads.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

extern char **environ;

namespace {

enum Result {
    SUCCESS = 0,
    CREATION_FAILURE = 2,
    INVALID_INPUT = 3,
    INVALID_PROGRAM = 4,
    INVALID_OPTION = 5,
    COMPILATION = 6,
    NAME_NOT_VALID = 10,
    INTERNAL = 11,
};

struct Program {
    std::string source, name, log, image, ptx;
    std::vector<std::pair<std::string, std::string>> headers;
    bool exact = false;
};

/// The settings of the options.
struct Options {
    std::vector<std::string> passed{"-std=c++17"};
    int capability = 75;
    bool exact = false;
};

namespace fs = std::filesystem;

bool starts(const std::string &text, const char *with) { return text.rfind(with, 0) == 0; }

bool one_of(const std::string &name, std::initializer_list<const char *> all) {
    for (const char *each : all)
        if (name == each) return true;
    return false;
}

/// Options whose value follows an equals sign or is the next argument.
bool takes_value(const std::string &name) {
    return one_of(name, {"--gpu-architecture", "-arch", "--std", "-std", "--define-macro", "--include-path", "--fmad", "-fmad", "--ftz", "-ftz",
                         "--prec-div", "-prec-div", "--prec-sqrt", "-prec-sqrt", "--maxrregcount", "-maxrregcount", "--diag-suppress",
                         "-diag-suppress", "--split-compile"});
}

bool flag(const std::string &name) {
    return one_of(name, {"--use_fast_math", "-use_fast_math", "--extra-device-vectorization", "--restrict", "-restrict", "-default-device",
                         "--device-as-default-execution-space", "--generate-line-info", "-lineinfo", "--device-debug", "-G", "--dopt", "-w",
                         "--disable-warnings", "--device-int128", "--relocatable-device-code=false", "-rdc=false"});
}

bool apply(const std::string &name, const std::string &value, Options &options) {
    if (name == "--gpu-architecture" || name == "-arch") {
        options.exact = starts(value, "sm_");
        if (!options.exact && !starts(value, "compute_")) return false;
        options.capability = atoi(value.c_str() + value.find('_') + 1);
        return options.capability >= 50;
    }
    if (name == "--std" || name == "-std") options.passed.push_back("-std=" + value);
    if (name == "--define-macro") options.passed.push_back("-D" + value);
    if (name == "--include-path") options.passed.push_back("-I" + value);
    return true;
}

bool parse(int count, const char *const *given, Options &options, std::string &log) {
    for (int i = 0; i < count; i++) {
        std::string option = given[i];
        size_t equals = option.find('=');
        std::string name = option.substr(0, equals);
        bool known = true;
        if (starts(option, "-D") || starts(option, "-I") || starts(option, "-U")) {
            if (option.size() == 2 && i + 1 < count) option += given[++i];
            options.passed.push_back(option);
        } else if (flag(option)) {
        } else if (takes_value(name)) {
            std::string value = equals != std::string::npos ? option.substr(equals + 1) : i + 1 < count ? given[++i] : "";
            known = apply(name, value, options);
        } else {
            known = false;
        }
        if (!known) {
            log = "nvrtc: error: invalid value or unrecognized option " + option + " (simulated NVRTC)\n";
            return false;
        }
    }
    return true;
}

std::string slurp(const fs::path &path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
}

/// Runs g++ in the folder; its messages go to the log.
bool compiler(const fs::path &folder, std::vector<std::string> arguments, std::string &log) {
    arguments.insert(arguments.begin(), "g++");
    std::vector<char *> pointers;
    for (auto &argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    fs::path said = folder / "log";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t child = 0;
    int failed = posix_spawnp(&child, "g++", &actions, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) {
        log += std::string("g++: ") + strerror(failed) + "; the simulated NVRTC needs it\n";
        return false;
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    log += slurp(said);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// The names of the kernels in preprocessed text in which `__global__` became the marker.
std::vector<std::string> kernels(const std::string &text) {
    static const std::regex pattern(
        R"((template\s*<[^;{}]*>\s*)?cuda_sim_kernel\s+(?:static\s+)?void\s+(\w+)\s*\()"
        R"(|void\s+cuda_sim_kernel\s+(\w+)\s*\()");
    std::vector<std::string> names;
    for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
        if ((*at)[1].matched) continue;
        std::string name = (*at)[2].matched ? (*at)[2] : (*at)[3];
        bool seen = false;
        for (auto &other : names) seen = seen || other == name;
        if (!seen) names.push_back(name);
    }
    return names;
}

/// The symbols for the driver: the kernels' launchers and the sizes of their parameters.
std::string trampolines(const std::vector<std::string> &names, const Options &options) {
    std::ostringstream text;
    text << "\nnamespace cuda_sim {\n"
            "template <class... P> static size_t sizes(void (*)(P...), size_t *out) {\n"
            "    const size_t all[] = {sizeof(P)..., 0};\n"
            "    for (size_t i = 0; out && i < sizeof...(P); i++) out[i] = all[i];\n"
            "    return sizeof...(P);\n"
            "}\n"
            "}\n"
            "extern \"C\" const int cuda_sim_capability = " << options.capability << ";\n";
    for (auto &name : names)
        text << "extern \"C\" void " << name << "__launch(const unsigned grid[3], const unsigned block[3], void **params) {\n"
             << "    shim::launch(" << name << ", grid, block, params);\n}\n"
             << "extern \"C\" size_t " << name << "__params(size_t *out) { return cuda_sim::sizes(" << name << ", out); }\n";
    return text.str();
}

/// The shared object as text, like PTX: with the names of its entries, and an end as in C strings.
std::string as_text(const std::string &image, const std::vector<std::string> &names, const Options &options) {
    static const char digits[] = "0123456789abcdef";
    std::string text = "//\n// Simulated PTX: a shared object of the host, in hexadecimal\n//\n.version 8.0\n";
    text += ".target sm_" + std::to_string(options.capability) + "\n";
    for (auto &name : names) text += "// .visible .entry " + name + "\n";
    text += "// object ";
    for (unsigned char byte : image) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text + "\n" + '\0';
}

fs::path shim() {
    Dl_info own{};
    dladdr(reinterpret_cast<void *>(&shim), &own);
    return fs::path(own.dli_fname).parent_path() / "shim.h";
}

bool build(Program &program, const Options &options, const fs::path &folder) {
    for (auto &[name, text] : program.headers) {
        fs::create_directories((folder / name).parent_path());
        std::ofstream(folder / name) << text;
    }
    std::vector<std::string> common = options.passed;
    // __CUDA_ARCH__ stays undefined: sources that see it expect PTX assembly to work.
    common.insert(common.end(), {"-I" + folder.string(), "-include", shim().string(), "-x", "c++", "-fdiagnostics-color=never", "-Wno-unknown-pragmas"});
    auto with = [&](std::vector<std::string> first, const fs::path &input, const fs::path &output) {
        first.insert(first.end(), common.begin(), common.end());
        first.insert(first.end(), {input.string(), "-o", output.string()});
        return first;
    };
    std::string line = "#line 1 \"" + program.name + "\"\n";
    std::ofstream(folder / "list.cu") << "#undef __global__\n#define __global__ cuda_sim_kernel\n" << line << program.source;
    if (!compiler(folder, with({"-E", "-P"}, folder / "list.cu", folder / "list.ii"), program.log)) return false;
    auto names = kernels(slurp(folder / "list.ii"));
    std::ofstream(folder / "program.cu") << line << program.source << trampolines(names, options);
    program.log.clear();
    std::vector<std::string> flags{"-O0", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", "-fno-gnu-unique", "-Wl,-Bsymbolic"};
    if (!compiler(folder, with(flags, folder / "program.cu", folder / "program.so"), program.log)) return false;
    program.image = slurp(folder / "program.so");
    program.ptx = as_text(program.image, names, options);
    program.exact = options.exact;
    return !program.image.empty();
}

Result give(const std::string &from, char *to) {
    memcpy(to, from.data(), from.size());
    return SUCCESS;
}

/// Copies text as a C string, with its closing zero.
Result give_text(const std::string &from, char *to) {
    memcpy(to, from.c_str(), from.size() + 1);
    return SUCCESS;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) Result

API nvrtcVersion(int *major, int *minor) {
    if (!major || !minor) return INVALID_INPUT;
    *major = 12;
    *minor = 0;
    return SUCCESS;
}

extern "C" __attribute__((visibility("default"))) const char *nvrtcGetErrorString(Result code) {
    switch (code) {
        case SUCCESS: return "NVRTC_SUCCESS";
        case CREATION_FAILURE: return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
        case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
        case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
        case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
        case COMPILATION: return "NVRTC_ERROR_COMPILATION";
        case NAME_NOT_VALID: return "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
        case INTERNAL: return "NVRTC_ERROR_INTERNAL_ERROR";
    }
    return "NVRTC_ERROR unknown";
}

API nvrtcGetNumSupportedArchs(int *count) {
    *count = 6;
    return SUCCESS;
}

API nvrtcGetSupportedArchs(int *architectures) {
    const int all[] = {70, 75, 80, 86, 89, 90};
    memcpy(architectures, all, sizeof all);
    return SUCCESS;
}

API nvrtcCreateProgram(Program **program, const char *source, const char *name, int count, const char *const *headers, const char *const *names) {
    if (!program || !source || count < 0 || (count && (!headers || !names))) return INVALID_INPUT;
    auto *made = new Program;
    made->source = source;
    made->name = name ? name : "default_program";
    for (int i = 0; i < count; i++) {
        fs::path where = names[i];
        bool inside = where.is_relative() && where.lexically_normal().string().rfind("..", 0) != 0;
        if (!inside) {
            delete made;
            return CREATION_FAILURE;
        }
        made->headers.emplace_back(names[i], headers[i]);
    }
    *program = made;
    return SUCCESS;
}

API nvrtcDestroyProgram(Program **program) {
    if (!program || !*program) return INVALID_PROGRAM;
    delete *program;
    *program = nullptr;
    return SUCCESS;
}

API nvrtcCompileProgram(Program *program, int count, const char *const *given) {
    if (!program) return INVALID_PROGRAM;
    Options options;
    program->log.clear();
    program->image.clear();
    if (!parse(count, given, options, program->log)) return INVALID_OPTION;
    std::error_code failed;
    std::string folder = (fs::temp_directory_path(failed) / "cuda-sim-XXXXXX").string();
    if (failed || !mkdtemp(folder.data())) return INTERNAL;
    bool good = build(*program, options, folder);
    fs::remove_all(folder, failed);
    return good ? SUCCESS : COMPILATION;
}

API nvrtcGetProgramLogSize(Program *program, size_t *bytes) {
    if (!program) return INVALID_PROGRAM;
    *bytes = program->log.size() + 1;
    return SUCCESS;
}

API nvrtcGetProgramLog(Program *program, char *log) { return program ? give_text(program->log, log) : INVALID_PROGRAM; }

API nvrtcGetPTXSize(Program *program, size_t *bytes) {
    if (!program || program->image.empty()) return INVALID_PROGRAM;
    *bytes = program->ptx.size();
    return SUCCESS;
}

API nvrtcGetPTX(Program *program, char *text) { return program && !program->image.empty() ? give(program->ptx, text) : INVALID_PROGRAM; }

API nvrtcGetCUBINSize(Program *program, size_t *bytes) {
    if (!program || program->image.empty()) return INVALID_PROGRAM;
    // A virtual architecture has no machine code.
    *bytes = program->exact ? program->image.size() : 0;
    return SUCCESS;
}

API nvrtcGetCUBIN(Program *program, char *image) {
    if (!program || program->image.empty() || !program->exact) return INVALID_PROGRAM;
    return give(program->image, image);
}

API nvrtcAddNameExpression(Program *, const char *) { return NAME_NOT_VALID; }

API nvrtcGetLoweredName(Program *, const char *, const char **) { return NAME_NOT_VALID; }
