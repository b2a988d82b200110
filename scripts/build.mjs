// Builds dist, from nothing: what `npm pack` publishes. A worker that loaded one file per source file spent most of its start on that, so the
// code is one file per entry of the exports map and per program (a file that runs as a thread or a process), and what they share is in chunks.
// esbuild bundles; terser shortens the names of locals, of private members, and of functions in which no error begins and that no program can call. Other
// functions, classes and other members keep theirs, so that a stack can be read.
// Declarations keep their comments, which editors show; those that no entry point reaches are removed, because no program can name them.
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build, stop } from "esbuild";
import { minify } from "terser";
import { keepReachable } from "./declarations.mjs";
import { PUBLISHED_TEXTS } from "./published-texts.mjs";

const root = fileURLToPath(new URL("../", import.meta.url));
const src = join(root, "src");
// `--code FOLDER`: the code alone, into that folder; for what measures it.
const [, , option, folder] = process.argv;
const codeOnly = option === "--code" && folder !== undefined;
const dist = codeOnly ? resolve(folder) : join(root, "dist");
/** The tables of options. Their sentences are in the declarations and in the docs, and no program reads them: 4 KB of the tarball. */
const OPTIONS = /src\/engine\/(settings|kind-options)\.ts$/;
const SENTENCE = /^ +sentence:\s+(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'),\n/gm;
/** A chunk of which a file uses nothing. esbuild imports it for what it does when it is loaded; ours do nothing then (`sideEffects`). */
const UNUSED_IMPORT = /^import "[./]+chunk-\w+\.js";\n/gm;
/** esbuild begins and ends each function of a file at the beginning of a line, and a text in it may have such a line, too: a statement or a comment follows the function. */
const FUNCTION =
  /^(async )?function\*? ([\w$]+)\([\s\S]*?^\}$(?=\n(?:(?:async )?function|var|let|const|class|export|import|\/\/|$))/gm;
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
      PUBLISHED_TEXTS,
      { name: "options", setup: (on) => on.onLoad({ filter: OPTIONS }, ({ path }) => withoutSentences(path)) },
    ],
  });
  await stop();
  // `programFile` finds the programs from the chunk that holds it.
  const [chunk] =
    Object.entries(metafile.outputs).find(([, { inputs }]) => (inputs[PROGRAM_FILE]?.bytesInOutput ?? 0) > 0) ?? [];
  if (chunk === undefined || dirname(resolve(root, chunk)) !== dist)
    throw new Error(`${PROGRAM_FILE} is built as ${chunk}.`);
  const entered = new Set(
    Object.values(metafile.outputs).flatMap((output) => (output.entryPoint ? output.exports : [])),
  );
  const short = shortChunks(outputFiles.map(({ path }) => basename(path)));
  for (const { path: built, text } of outputFiles) {
    const path = short(built);
    const linked = together(shortenLinks(short(text.replace(UNUSED_IMPORT, "")), basename(path)));
    const named = built === resolve(root, chunk) ? nameChunk(linked, basename(path)) : linked;
    const kept = inStacks(named, entered);
    const { code = "" } = await minify(named, {
      ecma: 2020,
      module: true,
      compress: { toplevel: true, passes: 3, keep_classnames: true, keep_fnames: kept },
      mangle: { toplevel: true, keep_classnames: true, keep_fnames: kept, reserved: classesOf(named) },
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
 * gzip finds what it has seen within 32 KB only, and steps of a schema make the same functions and views again and again. Declarations of functions may stand
 * anywhere in a module: each is followed by the one of which it has the largest share, which is 4 KB of the tarball.
 * @param {string} text
 */
function together(text) {
  /** @type {string[]} */
  const bodies = [];
  const rest = text.replace(FUNCTION, (body, _, name) => {
    // A statement behind a function would be moved with it, and run later.
    if (/\n\}\n[\w$.]+[(=]/.test(body)) throw new Error(`The build can't tell where the function ${name} ends.`);
    bodies.push(body);
    return "";
  });
  const pieces = bodies.map((body) => piecesOf(body));
  /** @type {Map<string, number[]>} */
  const holders = new Map();
  for (const [at, own] of pieces.entries())
    for (const piece of own) {
      const others = holders.get(piece);
      if (others) others.push(at);
      else holders.set(piece, [at]);
    }
  const left = new Set(bodies.keys());
  const ordered = [rest];
  for (let next = left.values().next().value; next !== undefined;) {
    left.delete(next);
    ordered.push(bodies[next] ?? "");
    /** @type {Map<number, number>} */
    const shared = new Map();
    for (const piece of pieces[next] ?? [])
      for (const other of holders.get(piece) ?? [])
        if (left.has(other)) shared.set(other, (shared.get(other) ?? 0) + 1);
    let largest = 0;
    next = left.values().next().value;
    for (const [other, count] of shared) {
      const share = count / (pieces[other]?.size ?? 1);
      if (share > largest) {
        largest = share;
        next = other;
      }
    }
  }
  return `${ordered.join("\n")}\n`;
}

/**
 * All pieces of a text of a length that gzip can refer to and that names of variables do not fill.
 * @param {string} body
 */
function piecesOf(body) {
  const LENGTH = 14;
  const all = new Set();
  for (let at = 0; at + LENGTH <= body.length; at++) all.add(body.slice(at, at + LENGTH));
  return all;
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
 * The functions in which errors begin, those that throw or make one, and those that programs call. The others are those that errors pass and helpers that a stack
 * shows now and then; their names are 6 KB of the tarball. esbuild numbers names that are there twice.
 * @param {string} text
 * @param {ReadonlySet<string>} entered
 */
function inStacks(text, entered) {
  const names = [...text.matchAll(FUNCTION)]
    .filter(
      ([body, , name = ""]) =>
        /\b(?:throw|new \w*Error)\b/.test(body) || entered.has(name) || entered.has(name.replace(/\d+$/, "")),
    )
    .map(([, , name = ""]) => name.replaceAll("$", "\\$"));
  return new RegExp(`^(?:${names.join("|") || "-"})$`);
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
