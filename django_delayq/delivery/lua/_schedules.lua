-- Prelude: what a queue knows of its schedules. docs/internals.md, "Periodic schedules".
--
-- Needs _clock, _window, _frame, _job.
--
-- The hash has the field 'version', which rises with every change of a definition, and for each schedule up to four
-- fields of a word, a space and its name: 'code', 'stored' and 'change' are signed and for clients only; 'state' is JSON
-- of texts: token, the job of the next moment; print, the fingerprint by which that job was made; fired, the last moment
-- that has come; behind, how many missed moments were caught up with in a row; early, a moment to come whose job has left
-- its place: somebody has run it early, or cancelled it. No other definition gives that moment a second job.

-- What cannot be read is missing.
local function read_state(name)
  local text = redis.call('HGET', keys.schedules, 'state ' .. name)
  local is_json, state = pcall(cjson.decode, text or '')
  local found = {}
  if is_json and type(state) == 'table' then
    for _, key in ipairs({ 'token', 'print', 'fired', 'behind', 'early' }) do
      if type(state[key]) == 'string' then found[key] = state[key] end
    end
  end
  return found
end

-- A number of the state; nil: it is none of ours, and no client would read it as one.
local function number_in(text)
  return text and #text <= 15 and tonumber(text:match('^%d+$')) or nil
end

local function write_state(name, state)
  redis.call('HSET', keys.schedules, 'state ' .. name, cjson.encode(state))
end

-- The moment whose job waits, epoch ms; nil: there is none.
local function moment_of(name)
  local moment = tonumber(redis.call('ZSCORE', keys.periods, name))
  return moment and is_score(moment) and moment or nil
end

-- As a client reads it: what somebody has written as '1e3' is no number to either.
local function read_version()
  return tonumber((redis.call('HGET', keys.schedules, 'version') or ''):match('^%d+$')) or 0
end
