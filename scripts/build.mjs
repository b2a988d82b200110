// Builds dist, from nothing: what `npm pack` publishes. A worker that loaded one file per source file spent most of its start on that, so the
// code is one file per entry of the exports map and per program (a file that runs as a thread or a process), and what they share is in chunks.
// esbuild bundles; terser shortens the names of locals and of private members. Functions, classes and other members keep theirs, so that a
// stack can be read.
// Declarations keep their comments, which editors show; those that no entry point reaches are removed, because no program can name them.
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build, stop } from "esbuild";
import { minify } from "terser";
import { keepReachable } from "./declarations.mjs";

const root = fileURLToPath(new URL("../", import.meta.url));
const src = join(root, "src");
// `--code FOLDER`: the code alone, into that folder; for what measures it.
const [, , option, folder] = process.argv;
const codeOnly = option === "--code" && folder !== undefined;
const dist = codeOnly ? resolve(folder) : join(root, "dist");
const STATEMENTS = /src\/stores\/(sqlite|postgres|redis)\/.*\.ts$/;
/** Steps of a store's schema. People read them before they run them (`outlive migrate print`). */
const RELEASED = /\/postgres\/migrations\/|\/sqlite\/schema\.ts$/;
/** The tables of options. Their sentences are in the declarations and in the docs, and no program reads them: 4 KB of the tarball. */
const OPTIONS = /src\/engine\/(settings|kind-options)\.ts$/;
const SENTENCE = /^ +sentence:\s+(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'),\n/gm;
/** A chunk of which a file uses nothing. esbuild imports it for what it does when it is loaded; ours do nothing then (`sideEffects`). */
const UNUSED_IMPORT = /^import "[./]+chunk-\w+\.js";\n/gm;
const PROGRAM_FILE = "src/platform/program-file.ts";

/** By chunk and name: the short name under which the chunk exports it. @type {Map<string, Map<string, string>>} */
const links = new Map();
/** @type {{ exports: Record<string, string | { types: string, default: string }>, bin: Record<string, string> }} */
const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
const targets = Object.values(manifest.exports).filter((target) => typeof target !== "string");

rmSync(dist, { recursive: true, force: true });
process.exitCode = codeOnly ? 0 : declare();
if (process.exitCode === 0) await bundle();

/** The declarations; it is also where types are checked. */
function declare() {
  const args = [join(root, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.build.json", "--emitDeclarationOnly"];
  const status = spawnSync(process.execPath, args, { cwd: root, stdio: "inherit" }).status ?? 1;
  if (status !== 0) return status;
  const all = readdirSync(dist, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".d.ts"));
  keepReachable(
    targets.map(({ types }) => join(root, types)),
    all.map((name) => join(dist, name)),
  );
  for (const name of readdirSync(dist, { recursive: true, encoding: "utf8" }).filter((file) =>
    file.endsWith(".d.ts"),
  )) {
    const path = join(dist, name);
    // Indented as the sources are: tsc uses twice as many spaces, which are half a kilobyte of the tarball.
    writeFileSync(
      path,
      readFileSync(path, "utf8").replace(/^(?: {4})+/gm, (spaces) => spaces.slice(spaces.length / 2)),
    );
  }
  return 0;
}

async function bundle() {
  const entries = [...targets.map((target) => target.default), ...Object.values(manifest.bin)]
    .map((file) => relative("dist", file).replace(/\.js$/, ""))
    .concat(programs());
  const { outputFiles, metafile } = await build({
    entryPoints: entries.map((name) => join(src, `${name}.ts`)),
    absWorkingDir: root,
    outbase: src,
    outdir: dist,
    bundle: true,
    splitting: true,
    format: "esm",
    platform: "node",
    // It turns `using` and `await using` into plain code, so that bundlers and older tools can read dist.
    target: "es2024",
    packages: "external",
    minifySyntax: true,
    metafile: true,
    write: false,
    logLevel: "warning",
    plugins: [
      { name: "statements", setup: (on) => on.onLoad({ filter: STATEMENTS }, ({ path }) => withoutComments(path)) },
      { name: "options", setup: (on) => on.onLoad({ filter: OPTIONS }, ({ path }) => withoutSentences(path)) },
    ],
  });
  await stop();
  // `programFile` finds the programs from the chunk that holds it.
  const [chunk] =
    Object.entries(metafile.outputs).find(([, { inputs }]) => (inputs[PROGRAM_FILE]?.bytesInOutput ?? 0) > 0) ?? [];
  if (chunk === undefined || dirname(resolve(root, chunk)) !== dist)
    throw new Error(`${PROGRAM_FILE} is built as ${chunk}.`);
  const short = shortChunks(outputFiles.map(({ path }) => basename(path)));
  for (const { path: built, text } of outputFiles) {
    const path = short(built);
    const linked = shortenLinks(short(text.replace(UNUSED_IMPORT, "")), basename(path));
    const named = built === resolve(root, chunk) ? nameChunk(linked, basename(path)) : linked;
    const { code = "" } = await minify(named, {
      ecma: 2020,
      module: true,
      compress: { toplevel: true, passes: 3, keep_classnames: true, keep_fnames: true },
      mangle: { toplevel: true, keep_classnames: true, keep_fnames: true, reserved: classesOf(named) },
      // A stack says a line and a column: lines of a length that an editor can show. With 1,000 the tarball has 2 KB more.
      format: { max_line_len: 16_000 },
    });
    // Of a chunk of types nothing is left, and nothing imports it any more.
    if (code === "" && basename(path).startsWith("chunk-")) continue;
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, code);
  }
}

/**
 * Numbers in place of the hashes in the names of chunks, which every import repeats.
 * @param {readonly string[]} files
 */
function shortChunks(files) {
  const HASHED = /\bchunk-[A-Z0-9]{8}\.js\b/g;
  const names = new Map(files.filter((file) => file.search(HASHED) === 0).map((file, at) => [file, `chunk-${at}.js`]));
  return (/** @type {string} */ text) => text.replace(HASHED, (name) => names.get(name) ?? name);
}

/**
 * Chunks are imported by our own files only, so that what they export needs no long name: the lists were 25 KB of the tarball.
 * esbuild writes each list as a statement at the beginning of a line.
 * @param {string} text
 * @param {string} file
 */
function shortenLinks(text, file) {
  return text.replace(/^(import|export) \{([^}]*)\}(?: from "([^"]+)")?;$/gm, (statement, kind, list, from) => {
    const source = from === undefined ? file : basename(from);
    if (!source.startsWith("chunk-")) return statement;
    const names = links.get(source) ?? new Map();
    links.set(source, names);
    /** @param {string} name */
    const short = (name) => names.get(name) ?? names.set(name, `$${names.size.toString(36)}`).get(name);
    const items = list.split(",").map((/** @type {string} */ one) => {
      const [first = "", second = first] = one.trim().split(" as ");
      // `import { name as local }`, `export { local as name }`, and `export { name as other } from`, where `name` is the chunk's.
      return kind === "export" && from === undefined ? `${first} as ${short(second)}` : `${short(first)} as ${second}`;
    });
    return `${kind} { ${items.join(", ")} }${from === undefined ? "" : ` from "${from}"`};`;
  });
}

/**
 * SQL and Lua are texts to a bundler: their comments and indentation would be published, and Lua is sent to the server as it is.
 * @param {string} path
 */
function withoutComments(path) {
  const source = readFileSync(path, "utf8");
  // What people read keeps its lines and the comments in front of statements; those inside of functions are 1 KB of the tarball. White space stays
  // as it is: a step may be made of an earlier one, whose lines it looks for.
  if (RELEASED.test(path))
    return { contents: source.replace(/^ {4,}-- .*\n/gm, ""), loader: /** @type {const} */ ("ts") };
  const text = source.replace(/^[ \t]*--[ \t].*\n/gm, "");
  return { contents: text.replace(/^[ \t]+/gm, ""), loader: /** @type {const} */ ("ts") };
}

/** @param {string} path */
function withoutSentences(path) {
  const text = readFileSync(path, "utf8").replace(SENTENCE, "");
  if (/^ +sentence:/m.test(text)) throw new Error(`A sentence of ${path} has a form that the build does not know.`);
  return { contents: text, loader: /** @type {const} */ ("ts") };
}

/** As `platform/program-file.ts` lists them. */
function programs() {
  const [, list = ""] = /^export type Program =\n([^;]+);/m.exec(readFileSync(join(root, PROGRAM_FILE), "utf8")) ?? [];
  const names = [...list.matchAll(/"([\w/-]+)"/g)].map(([, name]) => name ?? "");
  if (names.length === 0) throw new Error(`${PROGRAM_FILE} lists no programs.`);
  return names;
}

/**
 * esbuild writes a class as `var Name = class`, so its name is that of the variable.
 * @param {string} text
 */
function classesOf(text) {
  return [...text.matchAll(/\b(?:var|let|const) ([\w$]+) = class\b/g)].map(([, name = ""]) => name);
}

/**
 * @param {string} text
 * @param {string} name
 */
function nameChunk(text, name) {
  const parts = text.split('"platform/program-file.ts"');
  if (parts.length !== 2) throw new Error(`${name} names platform/program-file.ts ${parts.length - 1} times.`);
  return parts.join(JSON.stringify(name));
}
