#include "report/report.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/run.h"

extern char **environ;

/* An image file as gnuplot wrote it, in memory. */
typedef struct {
    char *bytes;
    size_t len;
} image;

/* Appends all bytes that can be read from fd to the image. */
static int drain(int fd, image *to, kvd_err *err)
{
    char buf[1 << 16];
    FILE *const f = open_memstream(&to->bytes, &to->len);
    if (!f)
        return kvd_no_memory(err, "a figure", sizeof buf);
    ssize_t n;
    while ((n = read(fd, buf, sizeof buf)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0)
            fwrite(buf, 1, (size_t)n, f);
    if (n < 0)
        kvd_fail_errno(err, "cannot read what gnuplot draws");
    const bool lost = ferror(f);
    if (fclose(f) || lost)
        return kvd_no_memory(err, "a figure", to->len);
    return n < 0 ? -1 : 0;
}

/* Copies the last line of gnuplot's messages that is not empty, without the path of the scripts. */
static void last_line(int fd, const char *scripts, char *line, size_t size)
{
    char text[4096];
    const off_t all = lseek(fd, 0, SEEK_END),
                from = all < (off_t)sizeof text ? 0 : all - (off_t)sizeof text + 1;
    const ssize_t n = pread(fd, text, sizeof text - 1, from);
    size_t end = n > 0 ? (size_t)n : 0;
    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == ' '))
        end--;
    size_t start = end;
    while (start > 0 && text[start - 1] != '\n')
        start--;
    text[end] = '\0';
    char *const path = strstr(text + start, scripts);
    if (path && path[strlen(scripts)] == '/')
        memmove(path, path + strlen(scripts) + 1, strlen(path + strlen(scripts) + 1) + 1);
    snprintf(line, size, "%.*s", (int)size - 1, text + start);
}

/* Starts gnuplot in `dir` with its output going to two descriptors; no shell is involved. */
static int start(char *const *argv, const char *dir, int drawing, int said, pid_t *pid,
                 kvd_err *err)
{
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions))
        return kvd_no_memory(err, "starting gnuplot", 0);
    int code = posix_spawn_file_actions_addchdir_np(&actions, dir);
    if (!code)
        code = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!code)
        code = posix_spawn_file_actions_adddup2(&actions, drawing, 1);
    if (!code)
        code = posix_spawn_file_actions_adddup2(&actions, said, 2);
    if (!code)
        code = posix_spawnp(pid, "gnuplot", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (code == ENOENT)
        return kvd_fail(err, "gnuplot is not installed");
    errno = code;
    return code ? kvd_fail_errno(err, "cannot start gnuplot") : 0;
}

/* Runs gnuplot; argv holds no text of a result file. On failure *err says why there is no image. */
static int gnuplot(char *const *argv, const char *dir, const char *scripts, image *to, kvd_err *err)
{
    int pipe_fd[2] = {-1, -1}, said = -1, status = -1, code = 0;
    pid_t pid;
    char line[200], limit[KVD_MEMORY_LIMIT_TEXT];

    if (pipe2(pipe_fd, O_CLOEXEC) || (said = memfd_create("gnuplot", MFD_CLOEXEC)) < 0) {
        kvd_fail_errno(err, "cannot start gnuplot");
        goto done;
    }
    if (start(argv, dir, pipe_fd[1], said, &pid, err))
        goto done;
    close(pipe_fd[1]);
    pipe_fd[1] = -1;
    status = drain(pipe_fd[0], to, err);
    close(pipe_fd[0]); /* If the reader has failed, gnuplot must not wait for it. */
    pipe_fd[0] = -1;
    while (waitpid(pid, &code, 0) < 0)
        if (errno != EINTR) {
            status = kvd_fail_errno(err, "cannot wait for gnuplot");
            goto done;
        }
    if (status)
        goto done;
    last_line(said, scripts, line, sizeof line);
    if (WIFSIGNALED(code))
        status = kvd_fail(err, "gnuplot was ended by a signal: %s", strsignal(WTERMSIG(code)));
    else if (WEXITSTATUS(code))
        status = kvd_fail(err, "gnuplot failed: %s", *line ? line : "it said nothing");
    else if (!to->len)
        status = kvd_fail(err, "gnuplot drew nothing: %s", *line ? line : "it said nothing");
    if (status && kvd_memory_limit(limit)) {
        const kvd_err why = *err;
        kvd_fail(err, "%.400s; if it lacked memory, raise %s", why.msg, limit);
    }
done:
    for (int i = 0; i < 2; i++)
        if (pipe_fd[i] >= 0)
            close(pipe_fd[i]);
    if (said >= 0)
        close(said);
    return status;
}

/* Draws a figure with one of gnuplot's terminals. On failure *err says why there is no image. */
static int draw(const kvd_figure *f, const char *terminal, const char *dir, const char *scripts,
                image *to, kvd_err *err)
{
    char *common = NULL, *script = NULL, *head = NULL;
    int status = -1;
    if (asprintf(&common, "%s/common.gp", scripts) < 0)
        common = NULL;
    if (asprintf(&script, "%s/%s", scripts, f->script) < 0)
        script = NULL;
    if (asprintf(&head, "term='%s'; out='/dev/stdout'; width=%d; height=%d", terminal, f->width,
                 f->height) < 0)
        head = NULL;
    if (common && script && head) {
        char program[] = "gnuplot", defaults[] = "-d", e[] = "-e";
        char *argv[] = {program, defaults, e, head, e, f->settings, common, script, NULL};
        status = gnuplot(argv, dir, scripts, to, err);
    } else {
        kvd_no_memory(err, f->name, 0);
    }
    free(common);
    free(script);
    free(head);
    return status;
}

/*
 * Removes the <title> elements of an SVG file, which hold gnuplot commands: a browser would show
 * them when the pointer rests on a curve.
 */
static void remove_titles(image *svg)
{
    static const char end[] = "</title>";
    char *from = svg->bytes;
    for (char *at; (at = strstr(from, "<title>")) != NULL; from = at) {
        char *const rest = strstr(at, end);
        if (!rest)
            break;
        memmove(at, rest + strlen(end), strlen(rest + strlen(end)) + 1);
    }
    svg->len = strlen(svg->bytes);
}

static int write_image(const kvd_figure *f, const char *terminal, const image *x,
                       const kvd_output *out, kvd_err *err)
{
    char name[sizeof f->name + 16];
    snprintf(name, sizeof name, "figures/%s.%s", f->name, terminal);
    return kvd_output_folder_text(out, name, x->bytes, x->len, err);
}

static int write_figure(kvd_figure *f, const kvd_output *out, const char *scripts, size_t *failed,
                        kvd_err *why, kvd_err *err)
{
    image svg = {0}, png = {0};
    int status = 0;
    const bool drawn = !draw(f, "svg", out->partial, scripts, &svg, why) &&
                       !draw(f, "png", out->partial, scripts, &png, why);
    if (kvd_interrupted()) { /* the interrupt may have ended gnuplot */
        status = kvd_fail_interrupted(err);
    } else if (drawn) {
        remove_titles(&svg);
        status =
            write_image(f, "svg", &svg, out, err) || write_image(f, "png", &png, out, err) ? -1 : 0;
    } else {
        kvd_text_raw(&f->why, why->msg);
        ++*failed;
    }
    free(svg.bytes);
    free(png.bytes);
    return status;
}

int kvd_plots_write(const kvd_report *r, const kvd_output *out, const char *scripts, size_t *failed,
                    kvd_err *why, kvd_err *err)
{
    /* gnuplot runs in another folder, so a relative path of the scripts must become absolute. */
    char *const where = realpath(scripts, NULL);
    int status = 0;
    if (!where)
        return kvd_fail_errno(err, "cannot open the folder of plot scripts '%s'", scripts);
    for (size_t i = 0; i < r->n; i++)
        for (size_t j = 0; j < r->section[i]->n_figures && !status; j++)
            if (!r->section[i]->figure[j].why.len)
                status = write_figure(&r->section[i]->figure[j], out, where, failed, why, err);
    free(where);
    return status;
}
