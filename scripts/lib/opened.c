/* Functions of libraries that a host may lack: each library is opened when one of its functions is first called. scripts/package-python
 * writes opened.list, a line FUNCTION(name, library, failure) for each function, and links this in place of the libraries. Where a library
 * cannot be opened, its functions return `failure`, and errno is ENOSYS. x86-64 only.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

enum { IBVERBS, PCAP, XDP, BPF, NUMA, LIBRARIES };

static const char *const names[LIBRARIES] = {"libibverbs.so.1", "libpcap.so.0.8", "libxdp.so.1", "libbpf.so.1", "libnuma.so.1"};

/* The data of a function's jump; the assembly below depends on its layout. */
struct function {
    void *target;
    const char *name;
    long library;
    long failure;
};

/* The body of a missing library's function: `failure` is in its structure, whose address the jump has left in r11. */
__attribute__((visibility("hidden"))) long shouter_opened_failed(const struct function *function) {
    errno = ENOSYS;
    return function->failure;
}

__attribute__((visibility("hidden"))) void shouter_opened_fail(void);

/* Finds a function. Two threads may do so at once, and find the same one. */
__attribute__((visibility("hidden"))) void *shouter_opened_find(struct function *function) {
    void *library = dlopen(names[function->library], RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, function->name) : NULL;
    if (!found)
        return (void *)shouter_opened_fail;
    __atomic_store_n(&function->target, found, __ATOMIC_RELEASE);
    return found;
}

/* The first call comes here with the structure in r11, and with the function's arguments in registers, which are kept; a failing function
 * comes here each time, as its library may have been installed meanwhile. */
__asm__(
    ".text\n"
    ".hidden shouter_opened_first\n"
    ".globl shouter_opened_first\n"
    "shouter_opened_first:\n"
    "  push %rbp\n  mov %rsp, %rbp\n"
    "  push %rdi\n  push %rsi\n  push %rdx\n  push %rcx\n  push %r8\n  push %r9\n  push %rax\n  push %r11\n"
    "  sub $128, %rsp\n"
    "  movups %xmm0, (%rsp)\n  movups %xmm1, 16(%rsp)\n  movups %xmm2, 32(%rsp)\n  movups %xmm3, 48(%rsp)\n"
    "  movups %xmm4, 64(%rsp)\n  movups %xmm5, 80(%rsp)\n  movups %xmm6, 96(%rsp)\n  movups %xmm7, 112(%rsp)\n"
    "  mov %r11, %rdi\n"
    "  call shouter_opened_find\n"
    "  mov %rax, %r10\n"
    "  movups (%rsp), %xmm0\n  movups 16(%rsp), %xmm1\n  movups 32(%rsp), %xmm2\n  movups 48(%rsp), %xmm3\n"
    "  movups 64(%rsp), %xmm4\n  movups 80(%rsp), %xmm5\n  movups 96(%rsp), %xmm6\n  movups 112(%rsp), %xmm7\n"
    "  add $128, %rsp\n"
    "  pop %r11\n  pop %rax\n  pop %r9\n  pop %r8\n  pop %rcx\n  pop %rdx\n  pop %rsi\n  pop %rdi\n"
    "  pop %rbp\n"
    "  jmp *%r10\n"
    ".hidden shouter_opened_fail\n"
    ".globl shouter_opened_fail\n"
    "shouter_opened_fail:\n"
    "  mov %r11, %rdi\n"
    "  jmp shouter_opened_failed\n");

#define FUNCTION(name, library, failure)                                                                                                   \
    __asm__(".section .text.opened." #name ",\"ax\",@progbits\n"                                                                           \
            ".hidden " #name "\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"                                                \
            "  lea shouter_opened_at_" #name "(%rip), %r11\n"                                                                              \
            "  jmp *shouter_opened_at_" #name "(%rip)\n");                                                                                 \
    extern void shouter_opened_first(void);                                                                                                \
    __attribute__((used, visibility("hidden"), section(".data.opened." #name))) struct function shouter_opened_at_##name = {               \
        (void *)shouter_opened_first, #name, library, failure};
#include "opened.list"
