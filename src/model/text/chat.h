/*
 * Chat forms: the text that a model's chat template puts around the turns of a conversation of one
 * user and one assistant, without a system message of the user's and without tools. A template is a
 * Jinja program in the files of a model; it is not run here, but recognised by parts of its text.
 * tests/oracle/make_chat.py compares every form with published templates run by jinja2.
 *
 * A conversation is bos, start, then for each turn: user, the user's text, header, and the answer.
 * The text `end` comes between an answer and the next user turn.
 */
#ifndef KVD_MODEL_TEXT_CHAT_H
#define KVD_MODEL_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

enum { KVD_CHAT_MARKS = 4 };

typedef struct {
    const char *name;
    const char *bos;    /* beginning-of-text token that the template writes; "" for none */
    const char *start;  /* text before the first user turn: a default system message, or "" */
    const char *user;   /* text before a user's text */
    const char *header; /* text after a user's text, up to and with the assistant's header */
    const char *end;    /* text between an answer and the next user turn */
    /* token with which the model ends its answer; in a conversation `end` replaces it */
    const char *stop;
    bool trim; /* true if white space at both ends of a user's text is removed */
    /*
     * true if the template removes reasoning from earlier answers. A KV cache still holds that
     * reasoning, so such a form is only correct for conversations of one turn.
     */
    bool one_turn;
    bool end_eos; /* true if `stop` is the eos_token of tokenizer_config.json */
    /*
     * Marks that identify the form: a template has it if it contains all texts of `has` and none of
     * `lacks`, after its escapes \n are read as line feeds, its double quotes as single quotes, and
     * its literals 'a' + 'b' as 'ab'. NULL ends a list.
     */
    const char *has[KVD_CHAT_MARKS], *lacks[KVD_CHAT_MARKS];
} kvd_chat;

/* Values of --chat: "none", "auto", then the names of the forms; NULL ends the list. */
extern const char *const kvd_chat_words[];
enum { KVD_CHAT_NONE, KVD_CHAT_AUTO };

/* Returns the chat form with the name kvd_chat_words[word]; NULL for "none" and "auto". */
const kvd_chat *kvd_chat_form(int word);

/* Returns the chat form of the template with this text, or NULL if no form matches. */
const kvd_chat *kvd_chat_recognise(const char *template_text);

/*
 * Returns the form of the chat template in the folder of a model: of chat_template.jinja if that
 * file exists, else of chat_template in tokenizer_config.json, which is a string or a list of named
 * templates with one named default. *path receives the allocated path of that file. Returns NULL
 * and fills *err if `folder` is no folder, has no template, holds broken JSON, if no form fits, or
 * if tokenizer_config.json names another bos_token or eos_token than the form has.
 */
const kvd_chat *kvd_chat_read(const char *folder, char **path, kvd_err *err);

/* A user turn in pieces, which are tokenized one after another without anything between them. */
typedef struct {
    const char *before[3];
    const char *text; /* [len] user's text: a part of the text that was passed */
    size_t len;
    const char *after; /* up to and with the assistant's header */
} kvd_chat_pieces;

/*
 * Returns the pieces of one user turn in the chat form c. first: true for the first turn of a
 * conversation; a later turn begins with `end` of the answer before it. White space that Python's
 * str.strip removes is stripped from `text`, if the form does so. If c is NULL, the text alone is
 * returned. `text` must be valid UTF-8.
 */
kvd_chat_pieces kvd_chat_around(const kvd_chat *c, const char *text, bool first);

#endif
