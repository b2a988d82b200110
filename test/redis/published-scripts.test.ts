// The build publishes Lua without comments, indentation and the spaces around operators (scripts/published-texts.mjs). A server reads the same of it.
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { build } from "esbuild";
import { PUBLISHED_TEXTS } from "../../scripts/published-texts.mjs";
import * as source from "../../src/stores/redis/scripts.ts";
import { connect } from "../../src/stores/redis/driver.ts";
import { ownRedis } from "../support/redis.ts";

/** As Lua 5.1 reads them: a number takes the letters that follow it. */
const TOKEN =
  /--.*|\[(=*)\[[\s\S]*?\]\1\]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\d[\w.]*|[A-Za-z_]\w*|[=~<>]=|\.{1,3}|[^\s\w]/g;

function tokensOf(script: string): string[] {
  return [...script.replace(/^#!.*/, "").matchAll(TOKEN)].flatMap(([token]) => (token.startsWith("--") ? [] : [token]));
}

async function publishedScripts(): Promise<typeof source> {
  const folder = await mkdtemp(join(tmpdir(), "outlive-scripts-"));
  try {
    const outfile = join(folder, "scripts.mjs");
    const entry = fileURLToPath(new URL("../../src/stores/redis/scripts.ts", import.meta.url));
    await build({
      entryPoints: [entry],
      outfile,
      bundle: true,
      format: "esm",
      platform: "node",
      plugins: [PUBLISHED_TEXTS],
    });
    return (await import(pathToFileURL(outfile).href)) as typeof source;
  } finally {
    await rm(folder, { recursive: true });
  }
}

test("every script of the package is the source's, and a server loads it", async (t) => {
  const published = await publishedScripts();
  assert.deepEqual(published.SCRIPT_NAMES, source.SCRIPT_NAMES);
  const server = await ownRedis(t);
  const wire = await connect({ url: server.url() });
  t.after(() => wire.close());
  const [ours, theirs] = [source, published].map(({ scriptsOf }) => scriptsOf("a run", source.SERVER_CLOCK));
  for (const name of source.SCRIPT_NAMES) {
    const { text, sha } = theirs!(name);
    assert.deepEqual(tokensOf(text), tokensOf(ours!(name).text), name);
    assert.equal(await wire.call(["SCRIPT", "LOAD", text], 5_000), sha, name);
  }
  const pairs = [
    [source.beginText(source.SERVER_CLOCK), published.beginText(source.SERVER_CLOCK)],
    [source.LAYOUT_FROM_2, published.LAYOUT_FROM_2],
  ];
  for (const [own, text] of pairs) {
    assert.deepEqual(tokensOf(text!), tokensOf(own!));
    await wire.call(["SCRIPT", "LOAD", text!], 5_000);
  }
});
