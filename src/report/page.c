/* Writes a report as a web page and draws its figures with gnuplot. */
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

#include "common/progress.h"
#include "common/run.h"
#include "common/utf8.h"
#include "report/report.h"

/* style sheet of the page; `nav` and elements of class `wide` or `draw` scroll sideways, and a
 * shadow shows at which end there is more */
static const char style[] =
    ":root{color-scheme:light dark;--ink:#1c1f23;--soft:#5a6370;--line:#d5dae0;--back:#fff;"
    "--panel:#f5f7f9;--mark:#0067a3;--good:#00694b;--part:#8a5a00;--bad:#a83a00;--none:#5a6370;"
    "--shadow:rgba(20,25,30,.35)}\n"
    "@media (prefers-color-scheme:dark){:root{--ink:#e4e7ea;--soft:#a2abb6;--line:#3a4149;"
    "--back:#15181c;--panel:#1e2328;--mark:#56b4e9;--good:#3fc79a;--part:#e6b04c;--bad:#ff8a50;"
    "--none:#a2abb6;--shadow:rgba(0,0,0,.9)}}\n"
    "*{box-sizing:border-box}html{scroll-padding-top:3rem}\n"
    "body{margin:0 auto;padding:0 1.25rem 3rem;max-width:80rem;color:var(--ink);"
    "background:var(--back);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,"
    "'DejaVu Sans',sans-serif}\n"
    "h1{font-size:1.6rem;line-height:1.2;margin:1rem 0 .2rem}"
    "h2{font-size:1.25rem;margin:1.6rem 0 .4rem;padding-top:.6rem;border-top:1px solid var(--line)}"
    "section:first-of-type h2{display:none}\n"
    "p{max-width:52rem;margin:.5rem 0}a{color:var(--mark)}"
    "code{font:.92em ui-monospace,'DejaVu Sans Mono',monospace}\n"
    "nav{position:sticky;top:0;z-index:2;display:flex;gap:.9rem;white-space:nowrap;padding:.5rem 0;"
    "border-bottom:1px solid var(--line);font-size:.88rem}nav a{text-decoration:none}\n"
    "@media (min-width:75rem){body{display:grid;grid-template-columns:10.5rem minmax(0,1fr);"
    "column-gap:1.5rem}body>*{grid-column:2}nav{grid-column:1;grid-row:1/span 99;"
    "align-self:start;flex-direction:column;gap:.45rem;white-space:normal;border:0;"
    "padding:1.3rem 0;max-height:100vh;overflow-y:auto}}\n"
    ".soft,.note,.files{color:var(--soft)}.note{font-size:.86rem}.files{font-size:.8rem}\n"
    ".cards{display:flex;flex-wrap:wrap;gap:.7rem;margin:.8rem 0}"
    ".card{flex:1 1 13rem;padding:.5rem .9rem;background:var(--panel);"
    "border:1px solid var(--line);border-radius:6px}"
    ".card b{display:block;font-size:2rem;line-height:1.2;font-variant-numeric:tabular-nums}"
    ".card span{display:block;font-size:.86rem}\n"
    ".strip{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.6rem 0;font-size:.92rem}"
    ".strip a{text-decoration:none}.strip b{font-size:1.1rem}\n"
    ".wide,.draw,nav{overflow-x:auto;background:"
    "linear-gradient(90deg,var(--under) 40%,transparent) 0 0/3rem 100% no-repeat local,"
    "linear-gradient(270deg,var(--under) 40%,transparent) 100% 0/3rem 100% no-repeat local,"
    "linear-gradient(90deg,var(--shadow),transparent) 0 0/.9rem 100% no-repeat scroll,"
    "linear-gradient(270deg,var(--shadow),transparent) 100% 0/.9rem 100% no-repeat scroll "
    "var(--under)}"
    "nav{--under:var(--back)}.wide{--under:var(--back);margin:.5rem 0 .2rem}"
    ".draw{--under:var(--panel)}\n"
    "table{border-collapse:collapse;font-size:.86rem;line-height:1.35;"
    "font-variant-numeric:tabular-nums}"
    "caption{caption-side:top;text-align:left;font-weight:600;padding:0 0 .3rem;"
    "font-size:.95rem;min-width:min(40rem,80vw)}\n"
    "th,td{padding:.25rem .7rem;text-align:left;vertical-align:top;"
    "border-bottom:1px solid var(--line)}"
    "th{font-weight:600;vertical-align:bottom;border-bottom:2px solid var(--line)}\n"
    ".k{white-space:nowrap}.n{text-align:right;white-space:nowrap}th.n{white-space:normal}"
    "td:not(.k):not(.n){min-width:16rem;overflow-wrap:anywhere}"
    "td.l:not(.k):not(.n){min-width:64rem}"
    ".shade{background:color-mix(in srgb,var(--mark) calc(var(--s)*.55),transparent)}\n"
    "figure{margin:.8rem 0;padding:.8rem;background:var(--panel);"
    "border:1px solid var(--line);border-radius:6px}"
    "figure svg{display:block;width:100%;height:auto;max-width:var(--w);"
    "min-width:min(var(--w),40rem);margin:0 auto}"
    "@media (min-width:75rem){figure svg{min-width:var(--w)}}\n"
    "figcaption{font-size:.86rem;margin-top:.4rem;max-width:58rem}"
    "figure svg [stroke='black']{stroke:var(--ink)}figure svg g[fill='black']{fill:var(--ink)}"
    "figure svg g[color='black']{color:var(--ink)}\n"
    "details{margin:.25rem 0}summary{cursor:pointer}"
    "details.claim summary{white-space:nowrap;overflow:hidden;text-overflow:ellipsis;"
    "font-size:.9rem}details.claim p{margin:.2rem 0 .2rem 1.2rem;font-size:.88rem}\n"
    ".v0{color:var(--good)}.v1{color:var(--part)}.v2{color:var(--bad)}.v3{color:var(--none)}\n"
    "@media print{body{display:block;max-width:none}nav{display:none}"
    "figure{break-inside:avoid}}\n";

static char *slurp(const char *path, kvd_err *err)
{
    char *text = NULL;
    size_t size = 0;
    FILE *const f = fopen(path, "rb");
    if (!f || getdelim(&text, &size, '\0', f) < 0) {
        kvd_fail_errno(err, "cannot read '%s'", path);
        free(text);
        text = NULL;
    }
    if (f)
        fclose(f);
    return text;
}

/* Appends an SVG to the page. Adds `name` to the start of each id in the SVG, because gnuplot
 * writes the same ids into every SVG. */
static void put_svg(kvd_text *out, const char *svg, const char *name)
{
    const char *p = strstr(svg, "<svg");
    if (!p)
        return;
    while (*p) {
        static const char *const before[] = {" id='", " id=\"", "href='#", "href=\"#", "url(#"};
        size_t hit = 0;
        for (size_t i = 0; i < sizeof before / sizeof before[0] && !hit; i++)
            if (strncmp(p, before[i], strlen(before[i])) == 0)
                hit = strlen(before[i]);
        if (hit) {
            kvd_text_add(out, "%.*s%s-", (int)hit, p, name);
            p += hit;
        } else {
            size_t n = 1 + strcspn(p + 1, " hu");
            kvd_text_add(out, "%.*s", (int)n, p);
            p += n;
        }
    }
}

/* Returns the length of a caption's title: its first sentence, or its text up to the first
 * colon. */
static size_t title_length(const char *caption)
{
    int depth = 0;
    size_t n = 0;
    for (; caption[n]; n++) {
        depth += (caption[n] == '(') - (caption[n] == ')');
        if (depth || caption[n + 1] != ' ')
            continue;
        const char next = caption[n + 2];
        if (caption[n] == ':' || (caption[n] == '.' && next >= 'A' && next <= 'Z'))
            break;
    }
    return n;
}

/* number of figures of a section that the page shows without a click */
enum { OPEN_FIGURES = 2 };

static int put_figure(kvd_text *out, const kvd_figure *f, bool folded, bool figures,
                      const kvd_output *folder, kvd_err *err)
{
    char name[sizeof f->name + 16];
    snprintf(name, sizeof name, "figures/%s.svg", f->name);
    if (kvd_text_check(&f->why, err) || kvd_text_check(&f->left_out, err) ||
        kvd_text_check(&f->no_png, err))
        return -1;
    if (folded) {
        enum { LONGEST = 190 };
        char title[200];
        size_t n = title_length(f->caption);
        const bool cut = n > LONGEST;
        for (n = cut ? LONGEST : n; cut && n > 0 && f->caption[n] != ' ';)
            n--;
        snprintf(title, sizeof title, "%.*s%s", (int)n, f->caption, cut ? " ..." : "");
        kvd_text_raw(out, "<details><summary>");
        kvd_text_html(out, title);
        kvd_text_raw(out, "</summary>\n");
    }
    kvd_text_raw(out, "<figure>\n");
    if (f->why.len || !figures) {
        kvd_text_raw(out, "<p class=\"note\">Not drawn: ");
        kvd_text_html(out, f->why.len ? kvd_text_get(&f->why) : "--no-plots");
        kvd_text_raw(out, " (the data are in tables/)</p>\n");
    } else {
        char *const path = kvd_output_folder_file(folder, name, err), *const svg =
                                                                          path ? slurp(path, err)
                                                                               : NULL;
        free(path);
        if (!svg)
            return -1;
        kvd_text_add(out, "<div class=\"draw\" style=\"--w:%dpx\">", f->width);
        put_svg(out, svg, f->name);
        kvd_text_raw(out, "</div>\n");
        free(svg);
    }
    kvd_text_raw(out, "<figcaption>");
    kvd_text_html(out, f->caption);
    if (figures && !f->why.len) {
        const kvd_text *const notes[] = {&f->left_out, &f->no_png};
        kvd_text_add(out, " <span class=\"files\"><a href=\"figures/%s.svg\">SVG</a>", f->name);
        if (!f->no_png.len)
            kvd_text_add(out, ", <a href=\"figures/%s.png\">PNG</a>", f->name);
        kvd_text_raw(out, "</span>");
        for (int i = 0; i < 2; i++)
            if (notes[i]->len) {
                kvd_text_raw(out, "<p class=\"note\">");
                kvd_text_html(out, kvd_text_get(notes[i]));
                kvd_text_raw(out, "</p>");
            }
    }
    kvd_text_raw(out,
                 folded ? "</figcaption>\n</figure>\n</details>\n" : "</figcaption>\n</figure>\n");
    return 0;
}

int kvd_page_write(const kvd_report *r, bool figures, const kvd_output *out, kvd_err *err)
{
    kvd_text page = {0};
    int status = -1;

    kvd_text_raw(
        &page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
               "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>");
    kvd_text_html(&page, kvd_text_get(&r->title));
    kvd_text_add(&page, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<nav>", style);
    for (size_t i = 0; i < r->n; i++)
        kvd_text_add(&page, "<a href=\"#%s\">%s</a>", r->section[i]->id, r->section[i]->title);
    kvd_text_raw(&page, "</nav>\n<h1>");
    kvd_text_html(&page, kvd_text_get(&r->title));
    kvd_text_raw(&page, "</h1>\n");
    for (size_t i = 0; i < r->n; i++) {
        const kvd_section *s = r->section[i];
        int n_open = 0;
        kvd_text_add(&page, "<section id=\"%s\">\n<h2>%s</h2>\n", s->id, s->title);
        kvd_text_raw(&page, kvd_text_get(&s->words));
        for (size_t j = 0; j < s->n_figures; j++)
            if (put_figure(&page, &s->figure[j], s->figure[j].folded || (n_open++ >= OPEN_FIGURES),
                           figures, out, err))
                goto done;
        for (size_t j = 0; j < s->n_tables; j++)
            if (!s->table[j]->only_files && s->table[j]->n_rows)
                kvd_table_html(s->table[j], &page);
        kvd_text_raw(&page, "</section>\n");
    }
    kvd_text_add(&page, "<p class=\"files\">Page made by kvdim-report %s</p>\n</body>\n</html>\n",
                 kvd_git_revision());
    if (kvd_text_check(&page, err))
        goto done;
    status = kvd_output_folder_text(out, "index.html", kvd_text_get(&page), page.len, err);
done:
    kvd_text_release(&page);
    return status;
}

extern char **environ;

/* contents of an image file written by gnuplot */
typedef struct {
    char *bytes;
    size_t len;
} image;

static int drain(int fd, image *to, kvd_err *err)
{
    char buf[1 << 13];
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
    return kvd_status(n < 0);
}

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

/* Starts gnuplot, which writes its image to file descriptor `drawing` and its messages to
 * `said`. */
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

/* Runs gnuplot and fills *to with the image that gnuplot draws. `argv` must not contain text from
 * result files, because gnuplot would execute it. */
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
    /* Closes the reading end of the pipe. If reading failed, gnuplot then gets a write error and
     * does not wait. */
    close(pipe_fd[0]);
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

/* Removes the <title> elements of an SVG, because a browser would show them as tooltips. */
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

/* characters of figures, and for each whether an installed font has it */
typedef struct {
    struct {
        uint32_t code;
        bool found;
    } known[256];
    size_t n;
} fonts;

/* Returns false if fontconfig knows no font with the character. */
static bool has_font(fonts *f, uint32_t code)
{
    char command[64], line[2];
    for (size_t i = 0; i < f->n; i++)
        if (f->known[i].code == code)
            return f->known[i].found;
    snprintf(command, sizeof command, "fc-list :charset=%x file 2>/dev/null", (unsigned)code);
    FILE *const list = popen(command, "r");
    bool found = !list || fgets(line, sizeof line, list);
    if (list)
        /* If fc-list failed, nothing is known of the fonts. */
        found = pclose(list) != 0 || found;
    if (f->n < sizeof f->known / sizeof *f->known) {
        f->known[f->n].code = code;
        f->known[f->n++].found = found;
    }
    return found;
}

/* Returns true for characters that are drawn without a glyph, such as a zero-width joiner. */
static bool is_invisible(uint32_t code)
{
    return (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0xfe00 && code <= 0xfe0f);
}

/* If no installed font has a character of the figure, writes to f->no_png why the PNG is left out.
 * gnuplot would draw the missing glyph over the whole PNG. */
static void check_fonts(kvd_figure *f, const image *svg, fonts *known)
{
    unsigned width;
    for (const char *s = svg->bytes; *s && !f->no_png.len; s += width) {
        width = kvd_utf8_width(*s);
        /* A name that was cut may end within a character. */
        if (strnlen(s, width) < width || kvd_utf8_first_bad(s, width) < width) {
            width = 1;
            continue;
        }
        const uint32_t code = kvd_utf8_decode(s, &width);
        if (code > 0x7f && !is_invisible(code) && !has_font(known, code))
            kvd_text_add(&f->no_png,
                         "No PNG of figure '%s': no installed font has the character '%.*s' "
                         "(U+%04X) of its labels. Install a font that has it, such as Noto, and "
                         "make the report again.",
                         f->name, (int)width, s, (unsigned)code);
    }
}

static int write_figure(kvd_figure *f, const kvd_output *out, const char *scripts, fonts *known,
                        size_t *failed, kvd_err *why, kvd_err *err)
{
    image svg = {0}, png = {0};
    int status = 0;
    bool drawn = !draw(f, "svg", out->partial, scripts, &svg, why);
    if (drawn) {
        remove_titles(&svg);
        check_fonts(f, &svg, known);
        drawn = f->no_png.len || !draw(f, "png", out->partial, scripts, &png, why);
    }
    if (kvd_interrupted()) { /* The interrupt may have ended gnuplot. */
        status = kvd_fail_interrupted(err);
    } else if (drawn) {
        status = kvd_status(write_image(f, "svg", &svg, out, err) ||
                            (png.len && write_image(f, "png", &png, out, err)));
    } else {
        kvd_text_raw(&f->why, why->msg);
        ++*failed;
    }
    free(svg.bytes);
    free(png.bytes);
    return status;
}

int kvd_plots_write(const kvd_report *r, const kvd_output *out, const char *scripts, bool quiet,
                    size_t *failed, kvd_err *why, kvd_err *err)
{
    /* absolute path of the scripts, because gnuplot runs in another folder */
    char *const where = realpath(scripts, NULL);
    int status = 0;
    if (!where)
        return kvd_fail_errno(err, "cannot open the folder of plot scripts '%s'", scripts);
    size_t n = 0, done = 0;
    for (size_t i = 0; i < r->n; i++)
        n += r->section[i]->n_figures;
    fonts known = {.n = 0};
    kvd_progress progress;
    kvd_progress_start(&progress, "report", "figures", (double)n, quiet);
    for (size_t i = 0; i < r->n; i++)
        for (size_t j = 0; j < r->section[i]->n_figures && !status; j++) {
            if (!r->section[i]->figure[j].why.len)
                status =
                    write_figure(&r->section[i]->figure[j], out, where, &known, failed, why, err);
            kvd_progress_step(&progress, (double)++done);
        }
    if (n)
        kvd_progress_end(&progress);
    free(where);
    return status;
}
