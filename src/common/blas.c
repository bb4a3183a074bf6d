#include "common/blas.h"

#include <cblas.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "common/threads.h"

const char *kvd_blas_core(void)
{
    return openblas_get_corename();
}

/* For functions that run before a sanitizer's library is initialised. */
#define UNSANITIZED __attribute__((no_sanitize("address", "undefined")))

/* Starts the program anew in this process. Returns if that fails. */
UNSANITIZED static void start_anew(char **argv, char **envp)
{
    char self[PATH_MAX];
    /* AT_BASE is 0 if the program was started by the command `ld.so PROGRAM`. Then /proc/self/exe
     * is ld.so. */
    if (!getauxval(AT_BASE))
        return;
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = '\0';
        /* Starts the program by its path, because ps would show "exe" after a start by
         * /proc/self/exe. */
        (void)execve(self, argv, envp);
    }
    (void)execve("/proc/self/exe", argv, envp);
}

void kvd_blas_choose_core(char **argv)
{
#if defined(__x86_64__)
    static const char *const oldest[] = {"Prescott",   "Core2",     "Katmai",
                                         "Coppermine", "Northwood", "Banias"};
    const char *core = openblas_get_corename(), *better = NULL;
    int is_oldest = 0;
    for (size_t i = 0; i < sizeof oldest / sizeof *oldest; i++)
        is_oldest |= !strcasecmp(core, oldest[i]);
    if (!is_oldest || getenv("OPENBLAS_CORETYPE"))
        return;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        better = "SkylakeX";
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        better = "Haswell";
    if (!better || setenv("OPENBLAS_CORETYPE", better, 1))
        return;
    start_anew(argv, environ);
    unsetenv("OPENBLAS_CORETYPE");
#else
    (void)argv;
#endif
}

/* bytes of OpenBLAS's buffer for one thread on x86-64 */
enum { BUFFER_BYTES = 128 << 20 };

/* Allocate and free OpenBLAS's buffer of one thread. Freed buffers stay mapped. */
extern void *blas_memory_alloc(int unused) __attribute__((weak));
extern void blas_memory_free(void *buffer) __attribute__((weak));

static bool fits(size_t bytes)
{
    void *const p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p != MAP_FAILED && !munmap(p, bytes);
}

/* Returns true for OpenBLAS after 0.3.26, which allocates its work buffer when the library is
 * loaded. */
static bool maps_buffer_when_loaded(void)
{
    char *at = strpbrk(OPENBLAS_VERSION, "0123456789");
    const long major = strtol(at, &at, 10), minor = strtol(at + 1, &at, 10);
    return major > 0 || minor > 3 || (minor == 3 && strtol(at + 1, NULL, 10) > 26);
}

static void refuse_without_buffer(const char *program)
{
    char limit[KVD_MEMORY_LIMIT_TEXT], line[256];
    const char *const slash = strrchr(program, '/');
    if (kvd_memory_limit(limit)) {
        const int n =
            snprintf(line, sizeof line, "%s: OpenBLAS needs a buffer of %d MB; raise %s\n",
                     slash ? slash + 1 : program, BUFFER_BYTES >> 20, limit);
        _exit(write(STDERR_FILENO, line, (size_t)n) < 0 ? 2 : 1);
    }
}

/* Returns true if the process runs in valgrind, which would not follow a program that restarts
 * itself. */
UNSANITIZED static bool in_valgrind(char *const *envp)
{
    bool found = false;
    for (size_t i = 0; envp[i] && !found; i++)
        found = !strncmp(envp[i], "LD_PRELOAD=", 11) && strstr(envp[i], "vgpreload");
    return found;
}

/* Returns the entry of `name`, which ends in '=', or NULL. */
UNSANITIZED static const char *entry_of(char *const *envp, const char *name)
{
    for (size_t i = 0; envp[i]; i++)
        if (!strncmp(envp[i], name, strlen(name)))
            return envp[i];
    return NULL;
}

/* Returns true if the memory of the process is limited; OpenBLAS should then use only one thread.
 * Exits with a message if the limit leaves no room for the work buffer of OpenBLAS. */
UNSANITIZED static bool memory_is_limited(const char *program)
{
    struct rlimit space, data;
    if (getrlimit(RLIMIT_AS, &space) || getrlimit(RLIMIT_DATA, &data) ||
        (space.rlim_cur == RLIM_INFINITY && data.rlim_cur == RLIM_INFINITY))
        return false;
    /* Leaves 16 MB for libraries that are loaded before OpenBLAS. */
    if (maps_buffer_when_loaded() && !fits(BUFFER_BYTES + (16 << 20)))
        refuse_without_buffer(program);
    return true;
}

/* Restarts the program if it must set environment variables, which libraries read only while they
 * are loaded. OPENBLAS_NUM_THREADS=1 saves memory. With OMP_WAIT_POLICY=passive, waiting OpenMP
 * threads sleep instead of occupying cores. */
UNSANITIZED static void restart(int argc, char **argv, char **envp)
{
    static char one[] = "OPENBLAS_NUM_THREADS=1", passive[] = "OMP_WAIT_POLICY=passive";
    static const char threads[] = "OPENBLAS_NUM_THREADS=";
    const char *const given = entry_of(envp, threads);
    const bool limited =
                   memory_is_limited(argc ? argv[0] : "kvdim") && !(given && !strcmp(given, one)),
               waits = !entry_of(envp, "OMP_WAIT_POLICY=") && !entry_of(envp, "GOMP_SPINCOUNT=");
    size_t n = 0, kept = 0;
    if ((!limited && !waits) || in_valgrind(envp))
        return;
    while (envp[n])
        n++;
    char *changed[n + 3];
    for (size_t i = 0; i < n; i++)
        if (!limited || strncmp(envp[i], threads, sizeof threads - 1) != 0)
            changed[kept++] = envp[i];
    if (limited)
        changed[kept++] = one;
    if (waits)
        changed[kept++] = passive;
    changed[kept] = NULL;
    start_anew(argv, changed);
}

typedef void start_function(int, char **, char **);
__attribute__((section(".preinit_array"), used)) static start_function *const before_libraries =
    restart;

static size_t buffers(int threads)
{
    return 2 * (size_t)threads - 1;
}

static size_t stack_bytes(void)
{
    pthread_attr_t attributes;
    size_t bytes = 8 << 20;
    if (!pthread_attr_init(&attributes)) {
        (void)pthread_attr_getstacksize(&attributes, &bytes);
        (void)pthread_attr_destroy(&attributes);
    }
    return bytes;
}

static int map_buffers(size_t n, kvd_err *err)
{
    void **const buffer = malloc(n * sizeof *buffer);
    if (!buffer)
        return kvd_no_memory(err, "the buffers of OpenBLAS", n * sizeof *buffer);
    for (size_t i = 0; i < n; i++)
        buffer[i] = blas_memory_alloc(0);
    for (size_t i = 0; i < n; i++)
        blas_memory_free(buffer[i]);
    free(buffer);
    return 0;
}

int kvd_blas_most_threads(void)
{
    const char *const word = strstr(openblas_get_config(), "MAX_THREADS=");
    const long n = word ? strtol(word + strlen("MAX_THREADS="), NULL, 10) : 0;
    return n > 0 && n < INT_MAX ? (int)n : INT_MAX;
}

#ifdef _OPENMP
__attribute__((constructor)) static void limit_threads(void)
{
    if (omp_get_max_threads() > kvd_blas_most_threads())
        omp_set_num_threads(kvd_blas_most_threads());
}
#endif

int kvd_blas_start(int threads, kvd_err *err)
{
    enum { STACK_BYTES = 128 << 10 }; /* stack of a thread in a matrix product of OpenBLAS */
    char limit[KVD_MEMORY_LIMIT_TEXT];
    const bool limited = kvd_memory_limit(limit);
    if (stack_bytes() < STACK_BYTES)
        return kvd_fail(err, "a thread's stack has %zu KB, OpenBLAS needs %d KB; raise ulimit -s",
                        stack_bytes() >> 10, STACK_BYTES >> 10);
    if (limited) {
        const size_t each = stack_bytes();
        if (!fits(BUFFER_BYTES))
            return kvd_fail(err, "OpenBLAS needs a buffer of %d MB; raise %s", BUFFER_BYTES >> 20,
                            limit);
        while (threads > 1 && !fits(2 * buffers(threads) * (BUFFER_BYTES + each)))
            threads--;
        if (blas_memory_alloc && blas_memory_free && map_buffers(buffers(threads), err))
            return -1;
    }
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
    openblas_set_num_threads(threads);
    /* Starts OpenMP's threads before the program begins its output: libgomp ends the program if a
     * thread cannot start. The count keeps GCC from removing the empty parallel region. */
    int started = 0;
#pragma omp parallel
    {
#pragma omp atomic
        started++;
    }
    return started > 0 ? threads : 1;
}

int kvd_blas_serial(void)
{
    /* Skips OpenMP builds, where openblas_set_num_threads would change OpenMP's threads. */
    if (openblas_get_parallel() != OPENBLAS_THREAD)
        return 0;
#ifdef _OPENMP
    if (omp_in_parallel())
        return 0;
#endif
    const int saved = openblas_get_num_threads();
    if (saved == 1)
        return 0;
    openblas_set_num_threads(1);
    return saved;
}

void kvd_blas_restore(int saved)
{
    if (saved > 0)
        openblas_set_num_threads(saved);
}
