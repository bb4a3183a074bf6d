/* Runs a command and prints "wall_s peak_MiB" or, with -c, also "cpu_s major_faults". */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

int main(int argc, char **argv)
{
    const int more = argc > 1 && strcmp(argv[1], "-c") == 0;
    if (argc < 2 + more) {
        fprintf(stderr, "usage: tool_rusage [-c] COMMAND [ARG...]\n");
        return 2;
    }
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    const pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        return 1;
    }
    if (pid == 0) {
        execvp(argv[1 + more], argv + 1 + more);
        perror(argv[1 + more]);
        _exit(127);
    }
    int status;
    struct rusage use;
    if (wait4(pid, &status, 0, &use) < 0) {
        perror("wait4");
        return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    const double wall = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    fprintf(stderr, "%.2f %.1f", wall, (double)use.ru_maxrss / 1024.0);
    if (more)
        fprintf(stderr, " %.1f %ld", seconds(use.ru_utime) + seconds(use.ru_stime), use.ru_majflt);
    fputc('\n', stderr);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
