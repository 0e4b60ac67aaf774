// A compiler library that makes texts, so that what is around NVRTC runs without it. `MAJOR` and `MINOR` are its version; it wants its library of
// built-in functions by its bare name, as NVRTC does. Each compilation adds a line to the file that FAKE_NVRTC_CALLS names.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT(x) #x
#define VERSION_TEXT(a, b) TEXT(a) "." TEXT(b)
#define BYTES 6000

struct program {
    char name[64];
    char log[200];
    char code[BYTES];
};

int nvrtcVersion(int *major, int *minor) {
    *major = MAJOR;
    *minor = MINOR;
    return 0;
}

int nvrtcCreateProgram(void **made, const char *source, const char *name, int headers, const char *const *texts, const char *const *names) {
    struct program *program = calloc(1, sizeof *program);
    snprintf(program->name, sizeof program->name, "%s", name);
    (void)source, (void)headers, (void)texts, (void)names;
    *made = program;
    return 0;
}

int nvrtcCompileProgram(void *made, int count, const char *const *options) {
    struct program *program = made;
    if (!dlopen("libnvrtc-builtins.so." VERSION_TEXT(MAJOR, MINOR), RTLD_NOW)) {
        snprintf(program->log, sizeof program->log, "failed to open libnvrtc-builtins.so");
        return 7;
    }
    const char *arch = "";
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], "--gpu-architecture=", 19)) arch = options[i] + 19;
    memset(program->code, '.', BYTES);
    snprintf(program->code, BYTES, "\x7f" "ELF of %s for %s", program->name, arch);
    const char *calls = getenv("FAKE_NVRTC_CALLS");
    FILE *file = calls ? fopen(calls, "a") : NULL;
    if (file) {
        fprintf(file, "%s %s\n", program->name, arch);
        fclose(file);
    }
    return 0;
}

int nvrtcDestroyProgram(void **made) {
    free(*made);
    return 0;
}

static int size(size_t *to, size_t bytes) {
    *to = bytes;
    return 0;
}

static int copy(char *to, const char *from, size_t bytes) {
    memcpy(to, from, bytes);
    return 0;
}

int nvrtcGetProgramLogSize(struct program *program, size_t *to) { return size(to, strlen(program->log) + 1); }
int nvrtcGetProgramLog(struct program *program, char *to) { return copy(to, program->log, strlen(program->log) + 1); }
int nvrtcGetCUBINSize(struct program *program, size_t *to) { (void)program; return size(to, BYTES); }
int nvrtcGetCUBIN(struct program *program, char *to) { return copy(to, program->code, BYTES); }
int nvrtcGetPTXSize(struct program *program, size_t *to) { (void)program; return size(to, BYTES); }
int nvrtcGetPTX(struct program *program, char *to) { return copy(to, program->code, BYTES); }
