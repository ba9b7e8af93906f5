INSERT INTO item_words (rowid, owner, words) VALUES (:id, :owner, :words)
