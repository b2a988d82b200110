// SQL and Lua as they are published: they are texts to a bundler, which would publish their comments and indentation, and Lua is sent to the server as it is.
import { readFileSync } from "node:fs";

const STATEMENTS = /src\/stores\/(sqlite|postgres|redis)\/.*\.ts$/;
/** Steps of a store's schema. People read them before they run them (`outlive migrate print`). */
const RELEASED = /\/postgres\/migrations\/|\/sqlite\/schema\.ts$/;
const LUA = /\/redis\/lua\//;
/**
 * A text, a value of TypeScript with the space behind it (a number that ends at a word is another number to Lua), a comment of TypeScript, or an operator of
 * Lua with the spaces around it, which are 1 KB of the tarball.
 */
const SPACED =
  /("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\$\{[^{}\n]*\} ?|^(?:\/?\*|\/\/).*)|(?<!\d) ?(==|~=|<=|>=|\.\.|[=,+*/<>(){}]) ?/gm;

/** @type {import("esbuild").Plugin} */
export const PUBLISHED_TEXTS = {
  name: "statements",
  setup: (on) => on.onLoad({ filter: STATEMENTS }, ({ path }) => ({ contents: publishedText(path), loader: "ts" })),
};

/** @param {string} path */
function publishedText(path) {
  const source = readFileSync(path, "utf8");
  // What people read keeps its lines and the comments in front of statements. Those inside of functions, and those that give the reasons of the source and begin
  // with `---`, are 3 KB of the tarball. White space stays as it is: a step may be made of an earlier one, whose lines it looks for.
  if (RELEASED.test(path)) return source.replace(/^ {4,}-- .*\n|^ *--- .*\n/gm, "");
  const text = source.replace(/^[ \t]*--[ \t].*\n/gm, "").replace(/^[ \t]+/gm, "");
  return LUA.test(path) ? text.replace(SPACED, "$1$2") : text;
}
