// The store port on Redis, held to its specification. It has neither `commit` nor `transact` (a row's commit included): their tests are skipped, and each
// is printed.
import assert from "node:assert/strict";
import { after, type TestContext } from "node:test";
import { storeConformance } from "../../src/testing/conformance/suite.ts";
import { redisStores } from "./redis-stores.ts";

const MAY_BE_SKIPPED = new Set(["this store has no commit", "a transaction of this store can't be left open"]);
const skipped: { readonly title: string; readonly why: string | undefined }[] = [];

function noting(t: TestContext): void {
  const skip = t.skip.bind(t);
  t.skip = (why?: string): void => {
    skipped.push({ title: t.name, why });
    skip(why);
  };
}

storeConformance("redis", (t) => {
  noting(t);
  return redisStores(t);
});

after(() => {
  process.stdout.write(skipped.map(({ title, why }) => `skipped on redis, ${why}: ${title}\n`).join(""));
  assert.deepEqual(
    skipped.filter(({ why }) => why === undefined || !MAY_BE_SKIPPED.has(why)),
    [],
  );
});
