// An entry of the history says when its attempt started, and who ran it: the job itself knows this only of its latest attempt.
import type { Migration } from "../migrate.ts";

export const attempts: Migration = {
  name: "attempts",
  drops: "when the attempts of jobs started, and who ran them",
  up: (schema) => `
  ALTER TABLE ${schema}.history ADD COLUMN started_at bigint, ADD COLUMN owner text;`,
  down: (schema) => `
  ALTER TABLE ${schema}.history DROP COLUMN started_at, DROP COLUMN owner;`,
};
