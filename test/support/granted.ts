// What the blocks of each page take for granted: names that the text around them introduces. A block gets those that it uses and does not
// declare itself.

const EVERYWHERE: Readonly<Record<string, string>> = {
  engine: 'declare const engine: import("outlive").Engine;',
  open: 'const { open } = await import("outlive");',
  job: 'const { job } = await import("outlive");',
  RetryLater: 'const { RetryLater } = await import("outlive");',
  schedule: 'const { schedule } = await import("outlive");',
  request: 'const { request } = await import("outlive/requests");',
  secret: 'const { secret } = await import("outlive/requests");',
  sqlite: 'declare const sqlite: typeof import("outlive/sqlite").sqlite;',
  postgres: 'declare const postgres: typeof import("outlive/postgres").postgres;',
  enqueue: 'declare const enqueue: typeof import("outlive/postgres").enqueue;',
  z: 'import * as z from "zod";',
  id: "declare const id: string;",
  run: 'declare const run: import("outlive").Run;',
  input: "declare const input: { orderId: string };",
  asyncIterableOfInputs: "declare const asyncIterableOfInputs: AsyncIterable<{ orderId: string }>;",
  invoice: 'const invoice = (await import("outlive")).job<{ orderId: string }>("invoice");',
  transfer: 'const transfer = (await import("outlive")).job<{ amount: number; from: string; to: string }>("transfer");',
};

const PAGES: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  "docs/batches.md": {
    payments:
      'declare const payments: import("outlive").BatchContract<{ iban: string; cents: string }, unknown, { bank: string }>;',
    firstRows: "declare const firstRows: { iban: string; cents: string }[];",
    moreRows: "declare const moreRows: { iban: string; cents: string }[];",
    rows: "declare const rows: { iban: string; cents: string }[];",
  },
  "docs/blobs.md": { myStore: 'declare const myStore: () => import("outlive/blobs").BlobStore;' },
  "docs/changes.md": { report: 'const report = (await import("outlive")).job<{ day: string }>("report");' },
  "docs/collections.md": {
    scan: 'declare const scan: import("outlive").CollectionContract<{ share: string }>;',
    report: 'declare const report: import("outlive").JobContract<never> & ((id: string, missing: object) => void);',
    askTheScanner: "declare const askTheScanner: (...args: unknown[]) => Promise<void>;",
    load: "declare const load: (stream: AsyncIterable<Uint8Array>) => Promise<void>;",
    bytes: "declare const bytes: Uint8Array;",
  },
  "docs/dedupe.md": {
    index: 'const index = (await import("outlive")).job<{ version: number }>("index");',
    search: 'const search = (await import("outlive")).job<string>("search");',
    count: 'const count = (await import("outlive")).job<number>("count");',
  },
  "docs/telemetry.md": { registry: 'declare const registry: import("prom-client").Registry;' },
  "docs/postgres.md": {
    cents: "declare const cents: number;",
    order: "declare const order: string;",
    pay: 'const pay = (await import("outlive")).job<{ orderId: string }>("pay");',
    client: 'declare const client: import("pg").PoolClient;',
    pg: 'import type * as pg from "pg";',
    drizzle: 'const { drizzle } = await import("drizzle-orm/node-postgres");',
    payments:
      'const { pgTable, text, integer } = await import("drizzle-orm/pg-core");\nconst payments = pgTable("payments", { job: text(), cents: integer() });',
    orders:
      'const { pgTable: orderTable, text: orderText } = await import("drizzle-orm/pg-core");\nconst orders = orderTable("orders", { id: orderText() });',
    Kysely: 'import { Kysely } from "kysely";',
    PostgresDialect: 'import { PostgresDialect } from "kysely";',
    PostgresPoolClient: 'import type { PostgresPoolClient } from "kysely";',
    PostgresClient: 'import type { PostgresClient } from "outlive/postgres";',
    Tables: "interface Tables { payments: { job: string; cents: number }; orders: { id: string } }",
    kyselyOn:
      'declare function kyselyOn<T>(client: import("outlive/postgres").PostgresClient): import("kysely").Kysely<T>;',
  },
  "docs/redis.md": { myClient: 'declare const myClient: import("ioredis").Redis;' },
  "docs/requests.md": {
    url: "declare const url: string;",
    inFlight: "declare const inFlight: number;",
    Options: 'type Options = Partial<import("outlive/requests").RequestOptions<{ endpoint: string }>>;',
  },
  "docs/schedules.md": { report: 'const report = (await import("outlive")).job<{ day: string }>("report");' },
  "docs/testing-your-jobs.md": { assert: 'import assert from "node:assert/strict";' },
  "docs/waiting.md": {
    order: 'declare const order: import("outlive").JobContract<{ item: string }>;',
    Decision: "const Decision = z.object({ approve: z.boolean(), by: z.string() });",
    Sales: "const Sales = z.object({ region: z.string(), cents: z.number() });",
    region: 'const region = (await import("outlive")).job<{ region: string }>("region");',
    regions: "declare const regions: string[];",
    ids: "declare const ids: string[];",
    id: 'declare const id: import("outlive").JobId<{ state: string; by: string | null }>;',
  },
};

/** A block of a page as a module that stands for itself. */
export function complete(page: string, text: string): string {
  // An excerpt of options.
  const block = /^ {2}\w+: /.test(text) ? `const options: Options = {\n${text}};` : text;
  const granted = { ...EVERYWHERE, ...PAGES[page] };
  const added: string[] = [];
  const wanted = [block];
  // What is added may itself use a name that is granted.
  for (let text = wanted.pop(); text !== undefined; text = wanted.pop())
    for (const [name, declaration] of Object.entries(granted)) {
      if (added.includes(declaration) || declares(block, name) || !uses(text, name)) continue;
      added.unshift(declaration);
      wanted.push(declaration);
    }
  return [...added, block, "export {};"].join("\n");
}

function uses(text: string, name: string): boolean {
  return new RegExp(`(?<![.\\w"'/-])${name}\\b(?!:|["'/-])`).test(text);
}

function declares(block: string, name: string): boolean {
  return new RegExp(
    `(?:(?:\\b(?:const|let|using|function|class|interface|type)|\\* as) (?:\\{[^}=]*?)?|import (?:type )?(?:\\{[^}]*?)?)\\b${name}\\b`,
  ).test(block);
}
