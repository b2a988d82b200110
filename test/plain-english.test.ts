// Holds the words: what a person reads (documents whole; messages and comments of code; titles and comments of tests) is plain English,
// without expressions that a reader has to translate. Each is listed with what to write instead, and with texts that show what is meant
// and what is not.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { proseOf } from "./support/source-text.ts";

interface Expression {
  readonly pattern: RegExp;
  readonly instead: string;
  readonly found: readonly string[];
  readonly fine: readonly string[];
}

const expressions: readonly Expression[] = [
  {
    pattern:
      /\b(?:is|are|was|were|be|been|being) (?:not |long |now |just |all )?over\b(?! (?:\d|the|a|an|its|all|by|to)\b)/i,
    instead: "finished, ended, expired",
    found: ["The lease is over.", "workers that are not over"],
    fine: ["The margin is over the limit.", "over and over"],
  },
  {
    pattern: /\btold\b(?! apart)/i,
    instead: "reported, printed, notified",
    found: ["A failure is told once."],
    fine: ["Two deaths are told apart.", "It says so."],
  },
  {
    pattern: /\b(?:is|are|was|were|be|been) said\b/i,
    instead: "says, logs, states; name what says it",
    found: ["That is said in the log."],
    fine: ["The log says so."],
  },
  {
    // The noun is fine, and so is a server that answers.
    pattern:
      /(?<!\b(?:their|its|the) )\b[Aa]nswers (?:(?:how|whether|what|if|null|true|false|nothing|an?|the|one)\b|[`{[])/,
    instead: "returns",
    found: ["It answers a handle.", "Answers whether it wakes up.", "answers `null`"],
    fine: ["Ambiguous answers are retried.", "an endpoint that answers 410", "local answers = {}"],
  },
  {
    pattern: /\bbesides?\b/i,
    instead: "alongside, next to, in addition to",
    found: ["the package beside it"],
    fine: ["on the side"],
  },
  {
    pattern: /\b(?:anew|once more)\b/i,
    instead: "again",
    found: ["planned anew", "runs Once more"],
    fine: ["a new plan", "more than once"],
  },
  {
    pattern: /\bmend(?:s|ed|ing)?\b/i,
    instead: "fix, repair",
    found: ["nothing is mended"],
    fine: ["recommended", "amend"],
  },
  {
    pattern: /(?<!["`])\b(?:whoever|nobody|somebody)\b(?!["`]| knows\b| can know\b)/i,
    instead: "no process, another process, the caller, a person; name who it is",
    found: ["Whoever recovers", "Nobody's lock"],
    fine: ['the id "nobody"', "no one", "Nobody knows what became of it."],
  },
  {
    pattern: /\b(?:give|gives|given|gave|giving|puts?|putting) (?:\w+ ){0,2}back\b/i,
    instead: "release, requeue, restore",
    found: ["what it holds is given back", "puts its jobs back"],
    fine: ["taken back", "what it held goes back"],
  },
  {
    pattern: /\b(?:leaves?|left|leaving) away\b/i,
    instead: "omit, remove",
    found: ["left away"],
    fine: ["left out"],
  },
  { pattern: /\bfor ever\b/i, instead: "forever", found: ["waits for ever"], fine: ["for every job", "forever"] },
  {
    pattern: /\bby (?:itself|themselves)\b/i,
    instead: "automatically, on its own",
    found: ["goes on by itself"],
    fine: ["the job itself"],
  },
  {
    pattern:
      /(?<!\bthere )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|fewer\b|later\b|earlier\b|larger\b|older\b|newer\b|greater\b|one\b)/i,
    instead: "is not a",
    found: ["A text is no pattern."],
    fine: ["There is no file.", "It is no longer there.", "It is no older than a second."],
  },
  {
    pattern: /(?<!\bthere )\b(?:is|are|was|were) none\b(?! of\b)/i,
    instead: "is not one; name it",
    found: ["a state that is none"],
    fine: ["There is none.", "none is found"],
  },
  { pattern: /\bin vain\b/i, instead: "for nothing, without effect", found: ["asked in vain"], fine: ["in a vein"] },
  {
    pattern: /\b(?:the )?other way (?:a)?round\b/i,
    instead: "vice versa, conversely",
    found: ["or the other way round", "The other way around, a job"],
    fine: ["another way to do it"],
  },
  {
    pattern: /\bbehind the last\b/i,
    instead: "after the last",
    found: ["goes on behind the last step"],
    fine: ["behind a pooler", "after the last step"],
  },
  { pattern: /\bfor the most part\b/i, instead: "mostly", found: ["disk for the most part"], fine: ["most parts"] },
  {
    pattern: /\bin the (?:very )?moment in which\b/i,
    instead: "just as, when",
    found: ["stopped in the very moment in which it began"],
    fine: ["at the moment of its death"],
  },
  {
    pattern: /\bin its hands?\b/i,
    instead: "that it holds; in the middle of",
    found: ["the rows in its hands"],
    fine: ["what it holds"],
  },
  {
    pattern: /\bnot any more\b/i,
    instead: "no longer",
    found: ["live in the backup, but not any more"],
    fine: ["It can't write any more.", "no longer"],
  },
  {
    pattern: /\b(?:where|there|here)by\b/i,
    instead: "a separate sentence",
    found: ["and thereby how far"],
    fine: ["nearby"],
  },
  {
    pattern: /\bwhat runs goes on\b/i,
    instead: "running jobs continue",
    found: ["The kind is paused; what runs goes on."],
    fine: ["The next attempt goes on after the wait.", "what runs is shown"],
  },
  {
    pattern: /\b(?:process|thread)(?:es|s)? of (?:its|their) own\b(?! host\b)/i,
    instead: "a separate process",
    found: ["It runs in a process of its own.", "threads of their own"],
    fine: ["the processes of its own host", "its own process"],
  },
  {
    pattern: /\b(?:after|at most|at least|up to|within|until|by|for) so (?:many|much|long)\b(?! (?:that|as|ago)\b)/i,
    instead: "this many, this long",
    found: ["After so many failures it stops.", "Nothing starts for so long."],
    fine: ["It waited for so long that it was given up.", "There are so many."],
  },
  {
    pattern: /\b(?:make|makes|made) room\b(?! for\b)/i,
    instead: "free disk space",
    found: ["Make room on the disk."],
    fine: ["The end of a job makes room for the next one."],
  },
  {
    pattern: /\b(?:came|comes?) about\b/i,
    instead: "happened, was made",
    found: ["The connection never came about."],
    fine: ["What it is about"],
  },
  { pattern: /\bgiven away\b/i, instead: "taken, passed on", found: ["Its work was given away."], fine: ["is given"] },
  {
    pattern: /\bhow (?:it|they) stands?\b/i,
    instead: "its state",
    found: ["It shows how it stands."],
    fine: ["how it started"],
  },
  {
    pattern: /\b(?:whence|whither|whereof|thereof|wherein|of whom)\b/i,
    instead: "where, of which; name what is meant",
    found: ["Whence it came", "Of whom the request is."],
    fine: ["where it came from"],
  },
  {
    pattern: /\bjust now\b/i,
    instead: "now, at the moment; has just",
    found: ["It can't be resolved just now."],
    fine: ["It has just ended, and now it runs."],
  },
  {
    pattern: /\band the like\b/i,
    instead: "such as; and similar",
    found: ["processes, http and the like"],
    fine: ["like a job"],
  },
];

/** In what users read, but not in comments: words that a native writer would use only in conversation. */
const inMessages: readonly Expression[] = [
  {
    pattern: /\b(?:goes?|went) on\b/i,
    instead: "continue",
    found: ["The engine goes on automatically."],
    fine: ["What is going on?"],
  },
  {
    pattern: /\b[Ll]ook(?:s|ed|ing)? (?:at|for more)\b/,
    instead: "check, read, inspect, find",
    found: ["Look at the server's log."],
    fine: ["Look for a quote that is not closed."],
  },
];

/** Of a document; a reader loses the thread of longer ones. */
const MAX_WORDS = 35;
/** Generated from sources, measured, quoted, or a record of the past. */
const NOT_PROSE = /^(?:CHANGELOG\.md|docs\/(?:api|settings|requirements|scoreboard)\.md|docs\/decisions\/speed\.md)$/;

const root = fileURLToPath(new URL("../", import.meta.url));

/** Released migrations are never edited, not even in their comments. */
const RELEASED = /^src\/stores\/(?:postgres\/migrations\/|sqlite\/schema\.ts)/;
/** This file lists the expressions; the others hold texts of other programs, or measured output. */
const QUOTED = /^(?:test\/plain-english\.test\.ts|test\/fixtures\/|docs\/requirements\.md)/;

for (const { pattern, instead, found, fine } of [...expressions, ...inMessages]) {
  test(`${pattern} finds what it is about (${instead}) and nothing else`, () => {
    for (const text of found) assert.match(text, pattern);
    for (const text of fine) assert.doesNotMatch(text, pattern);
  });
}

for (const folder of ["src", "proof", "scripts", "examples", "docs", "."]) {
  test(`what a person reads in ${folder === "." ? "the documents of the repository" : folder} is plain English`, () => {
    const offences = offencesIn(folder);
    assert.equal(offences.length, 0, offences.join("\n"));
  });
}

test("messages and documents use the words of their readers", () => {
  const isComment = /^\s*(?:\/\/|\/?\*)|^\s*--/;
  const messages = filesIn("src")
    .filter((path) => !/^src\/(?:testing|torture|demo)\//.test(path))
    .map((path) => ({ path, text: readFileSync(root + path, "utf8") }))
    .filter(({ text }) => inMessages.some(({ pattern }) => pattern.test(text)))
    .map(({ path, text }) => ({
      path,
      text: proseOf(text)
        .split("\n")
        .map((line, at) => (isComment.test(text.split("\n")[at]!) ? "" : line.replace(/\/\*.*?\*\/|\s\/\/ .*$/, "")))
        .join("\n"),
    }));
  const documents = ["docs", "."]
    .flatMap(filesIn)
    .filter((path) => path.endsWith(".md") && !NOT_PROSE.test(path) && !path.startsWith("docs/decisions/"))
    .map((path) => ({ path, text: readFileSync(root + path, "utf8") }));
  const offences = [...messages, ...documents].flatMap(({ path, text }) => offencesOf(path, text, inMessages));
  assert.equal(offences.length, 0, offences.join("\n"));
});

test(`no sentence of a document has more than ${MAX_WORDS} words`, () => {
  const long = ["docs", "."]
    .flatMap(filesIn)
    .filter((path) => path.endsWith(".md") && !NOT_PROSE.test(path))
    .flatMap((path) => longSentences(readFileSync(root + path, "utf8")).map((sentence) => `${path}: ${sentence}`));
  assert.deepEqual(long, []);
});

test("a long sentence is found, and code, tables and lists of short sentences are not", () => {
  const words = (count: number): string => Array.from({ length: count }, () => "word").join(" ");
  assert.deepEqual(longSentences(`It has ${words(33)}.\n\nIt has ${words(34)}.`), [`It has ${words(34)}.`]);
  const fine = `| It has ${words(60)} |\n\n- It ${words(30)}.\n- It ${words(30)}. And ${words(30)}.\n\n\`\`\`\n${words(60)}\n\`\`\`\n`;
  assert.deepEqual(longSentences(fine), []);
});

function longSentences(text: string): string[] {
  return text
    .replaceAll(/^```[^]*?^```/gm, "")
    .replaceAll(/^(?:\||#).*$/gm, "")
    .split(/\n\s*\n|\n(?=\s*(?:-|\d+\.) )/)
    .flatMap((part) =>
      part
        .replaceAll(/\s+/g, " ")
        .trim()
        .split(/(?<=[.!?:;][)"*]*) (?=[A-Z0-9`"*([])/),
    )
    .filter((sentence) => sentence.split(" ").length > MAX_WORDS);
}

test("titles and comments of tests are plain English", () => {
  const offences = offencesIn("test");
  assert.equal(offences.length, 0, offences.join("\n"));
});

function offencesIn(folder: string): string[] {
  return filesIn(folder).flatMap((path) => {
    const text = readFileSync(root + path, "utf8");
    // Most files need no second look: which of their characters are code takes long to find out.
    if (offencesOf(path, text).length === 0 || !/\.m?[tj]s$/.test(path)) return offencesOf(path, text);
    // A text of one word is a name.
    const prose = proseOf(text).replace(/(["'`])[\w-]+\1/g, (name) => " ".repeat(name.length));
    return offencesOf(path, path.startsWith("test/") ? titlesAndComments(text, prose) : prose);
  });
}

function offencesOf(path: string, text: string, list = expressions): string[] {
  return text.split("\n").flatMap((line, at) =>
    list.flatMap(({ pattern, instead }) => {
      const found = pattern.exec(line)?.[0];
      return found === undefined ? [] : [`${path}:${at + 1} ${found} (instead: ${instead}): ${line.trim()}`];
    }),
  );
}

function filesIn(folder: string): string[] {
  return readdirSync(root + folder, { recursive: folder !== ".", withFileTypes: true })
    .filter((entry) => entry.isFile() && /\.(?:ts|mts|mjs|md|yaml)$/.test(entry.name))
    .map((entry) =>
      `${entry.parentPath}/${entry.name}`
        .slice(root.length)
        .replaceAll("\\", "/")
        .replace(/^\.?\//, ""),
    )
    .filter((path) => !RELEASED.test(path) && !QUOTED.test(path) && !path.includes("node_modules"));
}

/** What is read of a test; its other texts are data. */
function titlesAndComments(text: string, prose: string): string {
  const lines = text.split("\n");
  const call = /^\s*(?:await t\.)?(?:test|it|describe|specify)\(/;
  const isRead = (line: string, at: number): boolean =>
    /^\s*(?:\/\/|\/?\*)/.test(line) ||
    call.test(line) ||
    (call.test(lines[at - 1] ?? "") && lines[at - 1]!.endsWith("("));
  return prose
    .split("\n")
    .map((line, at) => (isRead(lines[at]!, at) ? line : ""))
    .join("\n");
}
