// Keeps of the declarations in dist what a program can reach: from what the entry points export, each declaration by the names that it uses.
// tsc writes every export of every file, and three of ten belong to the inside of the package. It reads text: tsc starts each statement at
// the beginning of a line, and indents or closes with a bracket what belongs to it. A name that is found where it is not used only keeps more.
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

/**
 * @typedef {{ text: string, names: string[], from: string | null, bindings: Binding[], kind: "import" | "export" | "all" | "declaration", kept: boolean }} Statement
 * @typedef {{ text: string, name: string, local: string, kept: boolean }} Binding
 */

/**
 * @param {readonly string[]} entries declarations of the entry points, which keep all that they export
 * @param {readonly string[]} all every declaration; one of which nothing is kept is removed
 */
export function keepReachable(entries, all) {
  /** @param {(text: string) => string} seen */
  const read = (seen) => new Map(all.map((file) => [file, statementsOf(seen(readFileSync(file, "utf8")))]));
  // `keyof Port` shows the names of a port, and none of its comments.
  const commented = read((text) => text.replace(/\bkeyof \w+/g, "string"));
  reachAll(commented, entries);
  const files = read((text) => text);
  reachAll(files, entries);
  for (const [file, statements] of files)
    for (const [at, statement] of statements.entries())
      if (!commented.get(file)?.[at]?.kept) statement.text = statement.text.replace(/^ *\/\*[^]*?\*\/\n/gm, "");
  for (const [file, statements] of files) {
    const kept = statements.flatMap((statement) => textOf(statement));
    if (kept.some((text) => text !== "export {};")) writeFileSync(file, `${kept.join("\n")}\n`);
    else rmSync(file);
  }
}

/**
 * @param {Map<string, Statement[]>} files
 * @param {readonly string[]} entries
 */
function reachAll(files, entries) {
  for (const entry of entries)
    for (const { kind, names, bindings, text } of files.get(entry) ?? [])
      if (kind === "export") for (const { name } of bindings) reach(files, entry, name);
      else if (kind === "declaration" && text.includes("export ")) for (const name of names) reach(files, entry, name);
}

/**
 * @param {Map<string, Statement[]>} files
 * @param {string} file
 * @param {string} name as the file exports it, or as it calls it itself
 * @returns {boolean} whether the file has it
 */
function reach(files, file, name) {
  let found = false;
  for (const statement of files.get(file) ?? []) {
    const { kind, names, from, bindings, text } = statement;
    const target = from?.startsWith(".") ? join(dirname(file), from.replace(/\.[jt]s$/, ".d.ts")) : null;
    if (target !== null && !files.has(target)) throw new Error(`${file} imports ${target}, which is not there.`);
    if (names.includes(name)) {
      found = true;
      if (statement.kept) continue;
      statement.kept = true;
      for (const used of namesIn(text)) reach(files, file, used);
    }
    if (kind === "all" && target !== null && reach(files, target, name)) found = statement.kept = true;
    for (const binding of bindings) {
      const [own, other] = kind === "import" ? [binding.local, binding.name] : [binding.name, binding.local];
      if (own !== name) continue;
      found = true;
      if (binding.kept) continue;
      binding.kept = true;
      if (from === null) reach(files, file, other);
      else if (target !== null && other === "*")
        for (const one of files.get(target) ?? []) for (const inside of one.names) reach(files, target, inside);
      else if (target !== null) reach(files, target, other);
    }
  }
  return found;
}

/** @param {string} text */
function statementsOf(text) {
  /** @type {string[]} */
  const texts = [];
  let comments = "";
  let inComment = false;
  for (const line of text.trimEnd().split("\n")) {
    if (inComment || /^\/[/*]/.test(line)) {
      comments += `${line}\n`;
      inComment = !line.startsWith("//") && !line.endsWith("*/");
      continue;
    }
    // A comment belongs to what follows it, which may also be the next parameter of a function.
    if (/^(?:import|export|declare|abstract|function|class|interface|type|const|let) [\w*{]/.test(line))
      texts.push(comments + line);
    else texts[texts.length - 1] += `\n${comments}${line}`;
    comments = "";
  }
  return texts.map(statementOf);
}

/**
 * @param {string} text
 * @returns {Statement}
 */
function statementOf(text) {
  const code = text.replace(/\/\*[^]*?\*\/|^\/\/.*$/gm, "").trim();
  const list = /^(import|export)(?: type)? (?:\{([^}]*)\}|\* as (\w+))(?: from ["']([^"']+)["'])?;?$/.exec(code);
  if (list) {
    const [, kind, named = "", namespace, from = null] = list;
    const bindings = namespace
      ? [{ text: "", name: "*", local: namespace, kept: false }]
      : named.split(",").flatMap((one) => {
          const found = /^\s*(?:type )?(\w+)(?: as (\w+))?\s*$/.exec(one);
          if (!found) return [];
          const [, first = "", second = first] = found;
          // `import { name as local }`, `export { local as name }`.
          const [name, local] = kind === "import" ? [first, second] : [second, first];
          return [{ text: one.trim(), name, local, kept: false }];
        });
    return {
      text,
      names: [],
      from,
      bindings,
      kind: kind === "import" ? "import" : "export",
      kept: named.trim() === "" && !namespace,
    };
  }
  const all = /^export(?: type)? \* from ["']([^"']+)["'];$/.exec(code);
  if (all) return { text, names: [], from: all[1] ?? "", bindings: [], kind: "all", kept: false };
  const declared = /^(?:export )?(?:declare )?(?:abstract )?(?:function|class|interface|type|const|let) (\w+)/.exec(
    code,
  );
  if (!declared) throw new Error(`A statement of a declaration that scripts/declarations.mjs does not know:\n${text}`);
  return { text, names: [declared[1] ?? ""], from: null, bindings: [], kind: "declaration", kept: false };
}

/**
 * The names that a declaration may refer to: not those of its own members and parameters, nor words in texts.
 * @param {string} text
 */
function namesIn(text) {
  const code = text
    .replace(/\/\*[^]*?\*\//g, "")
    .replace(/"(?:[^"\\\n]|\\.)*"/g, '""')
    .replace(
      /^ +(?:(?:readonly|static|abstract|protected|private|get|set) )*(?:[\w$]+\??(?=[:(])|[a-z][\w$]*(?=<))/gm,
      "",
    )
    .replace(/([[{(;,]\s*(?:readonly )?)[\w$]+(?=\??:)/g, "$1");
  return new Set(code.match(/[A-Za-z_$][\w$]*/g));
}

/** @param {Statement} statement */
function textOf({ kind, text, bindings, kept }) {
  if (kind === "declaration" || bindings.length === 0) return kept ? [text] : [];
  const used = bindings.filter((binding) => binding.kept);
  if (used.length === 0) return [];
  return used.length === bindings.length
    ? [text]
    : [text.replace(/\{[^}]*\}(?=[^{}]*$)/, `{ ${used.map((one) => one.text).join(", ")} }`)];
}
