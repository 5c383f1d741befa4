-- Prelude: how a job that no worker ended is remembered for people. `EndRecord` in features/ended/calls.py reads it.
--
-- Needs _window, _frame, _job.

local function end_record(token, payload, outcome, now_ms, attempts, why)
  local line = why and why:match('[^\r\n]*') or ''
  -- Half a character is no text. What is cut has an end in ASCII, or is left out.
  if #line > 200 then line = line:sub(1, 200):gsub('[\128-\255]+$', '') end
  return cmsgpack.pack({ token, task_in(payload), outcome, now_ms, -1, -1, attempts or -1, line })
end

-- keep: how many records are kept, if the caller knows it. Without it, the next worker that adds some cuts the list.
-- Nothing depends on the list: if the server refuses a record, as the key has the wrong type, the record is dropped.
local function add_records(last_ended, records, keep)
  redis.pcall('RPUSH', last_ended, unpack(records))
  if keep then redis.pcall('LTRIM', last_ended, -keep, -1) end
end
